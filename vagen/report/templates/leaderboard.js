// Tables sort by the column whose heading is pressed: numbers first, largest first.
function key(row, index) {
  const text = row.cells[index].textContent.trim();
  const number = parseFloat(text.replace(/^[[+]/, ""));
  return { text, number, empty: text === "" };
}

for (const table of document.querySelectorAll(".board")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") === "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row, index), row]);
      rows.sort(([a], [b]) => {
        if (a.empty !== b.empty) return a.empty ? 1 : -1;
        const byNumber = Number.isNaN(a.number) || Number.isNaN(b.number) ? 0 : b.number - a.number;
        return (rising ? -1 : 1) * (byNumber || a.text.localeCompare(b.text));
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}
