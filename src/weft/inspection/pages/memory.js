"use strict";

const MEMORY_WIDTH = 1000;
const MEMORY_HEIGHT = 480;

/** The memory of temporaries: steps from left to right, bytes from top to bottom, a rectangle for each value. */
function memoryView(view, choose) {
  const [across, down] = [MEMORY_WIDTH / view.steps, MEMORY_HEIGHT / Math.max(view.bytes, 1)];
  const content = svg("g");
  content.append(svg("rect", { class: "frame", width: MEMORY_WIDTH, height: MEMORY_HEIGHT }));
  const every = Math.max(1, Math.ceil(view.steps / 20));
  for (let step = 0; step < view.steps; step += every) {
    content.append(svg("text", { class: "axis", x: across * (step + 0.5), y: MEMORY_HEIGHT + 18 }, view.first + step));
  }
  content.append(svg("text", { class: "axis", x: MEMORY_WIDTH / 2, y: -8 }, `${view.size}, by step`));
  const items = view.blocks.map((block, number) => {
    const [x, y] = [across * block.first, down * block.offset];
    const [width, height] = [across * (block.last - block.first + 1), Math.max(down * block.size, 1)];
    const title = block.lines.join("\n");
    const shape = svg("rect", { x, y, width, height, class: `tone${number % 6}` });
    const group = svg("g", { class: "block", role: "button", "aria-label": title }, shape, svg("title", {}, title));
    if (height > 12 && width > 70) {
      const room = Math.floor(width / 7) - 1;
      group.append(svg("text", { x: x + 4, y: y + Math.min(height, 14) - 2 }, title.split("\n")[0].slice(0, room)));
    }
    group.dataset.number = number;
    group.dataset.detail = block.detail;
    return group;
  });
  content.append(...items);
  const shifted = svg("g", { transform: "translate(10, 26)" }, content);
  const { drawing, fit } = zoomable(shifted, MEMORY_WIDTH + 20, MEMORY_HEIGHT + 56, "memory of temporaries by step");
  const order = view.blocks.map((_, number) => number).sort((a, b) => view.blocks[a].first - view.blocks[b].first);
  const next = (item, key) => {
    const position = order.indexOf(Number(item.dataset.number));
    return items[order[position + (key === "ArrowRight" || key === "ArrowDown" ? 1 : -1)]];
  };
  reachedByArrows(items, next, (item) => choose(view.blocks[Number(item.dataset.number)].detail));
  const hint = html("p", { class: "hint" }, "A rectangle is a value: the steps that need it, and its bytes. Arrow keys: next value");
  return { element: html("div", { class: "filling" }, hint, html("div", { class: "place" }, drawing)), shown: fit };
}
