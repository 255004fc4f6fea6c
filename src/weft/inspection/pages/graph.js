"use strict";

/** A graph: boxes that can be chosen, and arrows. */
function graphElement(graph, choose) {
  if (graph.note) return { element: html("p", { class: "note" }, graph.note), boxes: [], fit() {} };
  const content = svg("g");
  const boxes = graph.boxes.map((box, number) => boxElement(box, number));
  const sources = graph.boxes.map(() => []);
  const targets = graph.boxes.map(() => []);
  for (const [from, to] of graph.arrows) {
    content.append(svg("path", { class: "arrow", d: arrowPath(graph.boxes[from], graph.boxes[to]) }));
    sources[to].push(from);
    targets[from].push(to);
  }
  content.append(...boxes);
  const width = Math.max(1, ...graph.boxes.map((box) => box.x + box.width));
  const height = Math.max(1, ...graph.boxes.map((box) => box.y + box.height));
  const top = graph.boxes.filter((box) => box.y === 0);
  const middle = top.reduce((sum, box) => sum + box.x + box.width / 2, 0) / top.length;
  const { drawing, fit, reveal } = zoomable(content, width, height, `graph ${graph.title}`, middle);
  const next = (item, key) => {
    const number = Number(item.dataset.number);
    const found = neighbour(graph.boxes, sources, targets, number, key);
    if (found === undefined) return null;
    const box = graph.boxes[found];
    reveal(box.x + box.width / 2, box.y + box.height / 2);
    return boxes[found];
  };
  reachedByArrows(boxes, next, (item) => choose(graph.boxes[Number(item.dataset.number)].detail));
  return { element: drawing, boxes, fit };
}

function boxElement(box, number) {
  const lines = box.lines.map((line, index) =>
    svg("tspan", { x: box.x + box.width / 2, y: box.y + 20 + 15 * index }, line),
  );
  const shape = svg("rect", { x: box.x, y: box.y, width: box.width, height: box.height, rx: 5 });
  const text = svg("text", {}, ...lines);
  const label = box.title.replaceAll("\n", ", ");
  const group = svg("g", { class: `box ${box.kind}`, role: "button", "aria-label": label }, shape, text);
  group.dataset.number = number;
  if (box.detail !== null) group.dataset.detail = box.detail;
  group.append(svg("title", {}, box.title));
  return group;
}

function arrowPath(from, to) {
  const [x1, y1] = [from.x + from.width / 2, from.y + from.height];
  const [x2, y2] = [to.x + to.width / 2, to.y];
  const bend = Math.min(40, (y2 - y1) / 2);
  return `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
}

/** The box that an arrow key leads to: along an arrow of the graph, or to the next one of the layer. */
function neighbour(boxes, sources, targets, number, key) {
  if (key === "ArrowUp") return sources[number][0];
  if (key === "ArrowDown") return targets[number][0];
  const here = boxes[number];
  const aside = boxes
    .map((box, other) => ({ distance: key === "ArrowLeft" ? here.x - box.x : box.x - here.x, other }))
    .filter(({ distance, other }) => distance > 0 && boxes[other].y === here.y)
    .sort((one, two) => one.distance - two.distance);
  return aside[0]?.other;
}

/** The tab of graphs, of which one is shown at a time. */
function graphView(view, choose) {
  const place = html("div", { class: "place" });
  const picker = html("div", { class: "picker", role: "radiogroup", "aria-label": "which graph" });
  const graphs = view.graphs.map((graph) => graphElement(graph, choose));
  const show = (number) => {
    place.replaceChildren(graphs[number].element);
    graphs[number].fit();
  };
  view.graphs.forEach((graph, number) => {
    const button = html("input", { type: "radio", name: "graph", value: number });
    button.checked = number === 0;
    button.addEventListener("change", () => show(number));
    picker.append(html("label", {}, button, ` ${graph.title}`));
  });
  const hint = html("span", { class: "hint" }, "arrow keys: go along arrows · Enter: choose · + - 0: zoom");
  picker.append(hint);
  return { element: html("div", { class: "filling" }, picker, place), shown: () => show(chosenOf(picker)) };
}

function chosenOf(picker) {
  return Number(picker.querySelector("input:checked").value);
}
