"use strict";

const KINDS = { table: tableView, graph: graphView, memory: memoryView, timeline: timelineView };

/** A table that can be sorted by each column, and whose rows can be chosen. */
function tableView(view, choose) {
  const { columns, details } = view;
  const body = html("tbody");
  const rows = details.map((detail, number) => {
    const cells = columns.map((column) => cellOf(column, number));
    const row = html("tr", {}, ...cells);
    if (detail !== null) row.dataset.detail = detail;
    row.dataset.number = number;
    return row;
  });
  const heads = columns.map((column, position) => {
    const button = html("button", { type: "button" }, column.title);
    const head = html("th", { scope: "col", class: column.values ? "number" : "" }, button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keys = columns[position].values ?? columns[position].texts;
      const before = (a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : 0);
      const order = details.map((_, number) => number).sort((a, b) => (down ? before(b, a) : before(a, b)));
      body.append(...order.map((number) => rows[number]));
    });
    return head;
  });
  body.append(...rows);
  const next = (row, key) =>
    key === "ArrowDown" ? row.nextElementSibling : key === "ArrowUp" ? row.previousElementSibling : null;
  reachedByArrows(rows, next, (row) => choose(details[Number(row.dataset.number)]));
  const table = html("table", {}, html("thead", {}, html("tr", {}, ...heads)), body);
  return { element: html("div", { class: "filling scrolled" }, table), shown() {} };
}

function cellOf(column, number) {
  const cell = html("td", { class: column.values ? "number" : "" }, column.texts[number]);
  if (column.bar) {
    const most = Math.max(...column.values) || 1;
    cell.style.setProperty("--share", `${(100 * column.values[number]) / most}%`);
    cell.classList.add("bar");
  }
  return cell;
}

/** What is shown of the thing that was chosen. */
function detailElement(detail) {
  const facts = detail.facts.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]).flat();
  const parts = [html("h2", {}, detail.title), html("dl", {}, ...facts)];
  if (detail.graph) {
    const { element, fit } = graphElement(detail.graph, () => {});
    parts.push(html("h3", {}, detail.graph.title), html("div", { class: "small place" }, element));
    requestAnimationFrame(fit);
  }
  if (detail.text) parts.push(html("h3", {}, "text"), html("pre", { tabindex: 0 }, detail.text));
  return html("div", {}, ...parts);
}

function showPage(data) {
  const aside = html("aside", { "aria-live": "polite" }, html("p", { class: "hint" }, "Click on a row or a box to see here what it is; or use the arrow keys and Enter."));
  const choose = (number) => {
    if (number === null) return;
    aside.replaceChildren(detailElement(data.details[number]));
    for (const one of document.querySelectorAll("[data-detail]")) {
      one.classList.toggle("chosen", one.dataset.detail === String(number));
    }
  };
  const views = data.views.map((view) => KINDS[view.kind](view, choose));
  const tabs = data.views.map((view, number) =>
    html("button", { role: "tab", type: "button", id: `tab${number}`, "aria-controls": `view${number}` }, view.title),
  );
  const panels = views.map((view, number) =>
    html("section", { role: "tabpanel", id: `view${number}`, "aria-labelledby": `tab${number}` }, view.element),
  );
  const show = (number) => {
    tabs.forEach((tab, other) => tab.setAttribute("aria-selected", other === number));
    panels.forEach((panel, other) => (panel.hidden = other !== number));
    views[number].shown();
  };
  const next = (tab, key) => tabs[tabs.indexOf(tab) + (key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : NaN)];
  reachedByArrows(tabs, next, (tab) => show(tabs.indexOf(tab)));
  const facts = data.facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)));
  document.body.append(
    html("header", {}, html("h1", {}, data.title), html("dl", { class: "facts" }, ...facts)),
    html("nav", { role: "tablist", "aria-label": "views" }, ...tabs),
    html("main", {}, html("div", { class: "views" }, ...panels), aside),
  );
  show(0);
}

showPage(JSON.parse(document.getElementById("data").textContent));
