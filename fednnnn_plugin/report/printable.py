"""Text that may be shown anywhere."""


def printable(text: object) -> str:
    """Text safe to show on a terminal and in a document: no control characters."""
    return "".join(char if char.isprintable() else "?" for char in str(text))
