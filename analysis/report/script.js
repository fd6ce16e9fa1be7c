"use strict";
for (const box of document.querySelectorAll(".methods input")) {
  const show = () => {
    for (const part of document.querySelectorAll("[data-group]")) {
      if (part.dataset.group === box.value) part.classList.toggle("hidden", !box.checked);
    }
  };
  box.addEventListener("change", show);
  show();
}
const key = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text.replace(/^[(<\s]+/, ""));
  return { text, number: Number.isNaN(number) ? null : number };
};
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    for (const body of head.closest("table").tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("head"));
      const keyed = rows.map((row) => ({ row, ...key(row, head.cellIndex) }));
      keyed.sort((a, b) => {
        if (a.number !== null && b.number !== null) return up ? a.number - b.number : b.number - a.number;
        if ((a.number === null) !== (b.number === null)) return a.number === null ? 1 : -1;
        return up ? a.text.localeCompare(b.text) : b.text.localeCompare(a.text);
      });
      body.append(...keyed.map(({ row }) => row));
    }
  });
}
