"""FedML's single-process example in one line.

python one_line.py --cf simulation.yaml
"""

import fedml

if __name__ == "__main__":
    fedml.run_simulation()
