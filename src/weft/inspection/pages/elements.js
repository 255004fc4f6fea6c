"use strict";

const SVG = "http://www.w3.org/2000/svg";

/** How much a small drawing is magnified at most when it is first shown. */
const LARGEST = 1.5;

/** An element of HTML with attributes and children; a child that is no element becomes text. */
function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** One of `items` is in the order of the tab key, and arrow keys go from one to the next: `next(item, key)` tells to which. */
function reachedByArrows(items, next, choose) {
  if (!items.length) return;
  const focus = (item) => {
    for (const other of items) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  };
  for (const item of items) {
    item.tabIndex = -1;
    item.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        choose(item);
      } else {
        const other = event.key.startsWith("Arrow") && next(item, event.key);
        if (!other) return;
        focus(other);
      }
      event.preventDefault();
    });
    item.addEventListener("click", () => {
      focus(item);
      choose(item);
    });
  }
  items[0].tabIndex = 0;
}

/**
 * A drawing of a size that can be moved and magnified: by wheel and mouse, and by the keys + - and 0. A large one is shown
 * from its top on, around `middle`, in a size that can be read.
 */
function zoomable(content, width, height, label, middle = width / 2) {
  const view = { x: 0, y: 0, width, height };
  const drawing = svg("svg", { class: "drawing", role: "group", "aria-label": label }, content);
  const show = () => drawing.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
  const fit = () => {
    const most = Math.max(1, drawing.clientWidth || 900);
    view.width = Math.max(most / LARGEST, Math.min(width, 1.25 * most));
    view.height = (view.width * Math.max(1, drawing.clientHeight || 600)) / most;
    view.x = (width > view.width ? middle : width / 2) - view.width / 2;
    view.y = height < view.height ? (height - view.height) / 2 : 0;
    show();
  };
  const zoom = (factor, x = 0.5, y = 0.5) => {
    view.x += view.width * (1 - factor) * x;
    view.y += view.height * (1 - factor) * y;
    view.width *= factor;
    view.height *= factor;
    show();
  };
  drawing.addEventListener(
    "wheel",
    (event) => {
      const area = drawing.getBoundingClientRect();
      const [x, y] = [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height];
      zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, x, y);
      event.preventDefault();
    },
    { passive: false },
  );
  let from = null;
  drawing.addEventListener("pointerdown", (event) => (from = { x: event.clientX, y: event.clientY }));
  window.addEventListener("pointerup", () => (from = null));
  drawing.addEventListener("pointermove", (event) => {
    if (!from) return;
    view.x -= ((event.clientX - from.x) * view.width) / drawing.clientWidth;
    view.y -= ((event.clientY - from.y) * view.height) / drawing.clientHeight;
    from = { x: event.clientX, y: event.clientY };
    show();
  });
  drawing.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "=") zoom(1 / 1.3);
    else if (event.key === "-") zoom(1.3);
    else if (event.key === "0") fit();
    else return;
    event.preventDefault();
  });
  /** Move so far that a part of the drawing is seen. */
  const reveal = (x, y) => {
    if (x < view.x || x > view.x + view.width) view.x = x - view.width / 2;
    if (y < view.y || y > view.y + view.height) view.y = y - view.height / 2;
    show();
  };
  return { drawing, fit, reveal };
}
