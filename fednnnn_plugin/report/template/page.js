"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const value = (row, column) => row.cells[column].dataset.value;
  const compare = (a, b) => {
    if (a === "" || b === "") return 0;
    const [x, y] = [Number(a), Number(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) {
      return a.localeCompare(b, "en", { numeric: true });
    }
    return x - y;
  };
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        // What is missing comes last either way.
        if ((x === "") !== (y === "")) return x === "" ? 1 : -1;
        return up ? compare(x, y) : compare(y, x);
      });
      body.append(...rows);
      const way = up ? "ascending" : "descending";
      document.getElementById("sorted").textContent =
        `Sorted by ${heading.textContent.trim()}, ${way}`;
    });
  });
}
const open = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", open);
open();
