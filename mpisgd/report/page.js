"use strict";
const value = (row, k) => {
  const cell = row.cells[k];
  return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
};
const order = (a, b) => {
  if (a === "-" || b === "-") return a === b ? 0 : a === "-" ? 1 : -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, k) => head.firstChild.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].map(row => [value(row, k), row]);
    rows.sort((a, b) => a[0] === "-" || b[0] === "-" || up ? order(a[0], b[0]) : order(b[0], a[0]));
    body.append(...rows.map(pair => pair[1]));
  }));
  const filter = table.parentElement.previousElementSibling;
  const [search, all] = filter.querySelectorAll("input");
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of body.rows) {
      const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      left += !row.hidden;
    }
    filter.querySelector("span").textContent = words.length ? `${left} of ${body.rows.length} rows` : "";
  });
  if (all) all.addEventListener("change", () => table.classList.toggle("fold", !all.checked));
}
