"use strict";

const ROW_HEIGHT = 26;
const LEFT = 190;
const TOP = 24;

/** What ran when: a row for each stream on each thread. Spans are [row, begin, duration, name, detail] in microseconds. */
function timelineView(view, choose) {
  const spans = view.spans;
  const end = Math.max(1, ...spans.map((span) => span[1] + span[2]));
  const window_ = { begin: 0, length: end };
  const canvas = html("canvas", { tabindex: 0, role: "application", "aria-label": "timeline" });
  const said = html("p", { class: "said", "aria-live": "polite" }, view.note);
  let chosen = -1;
  let width = 800;

  const at = (time) => LEFT + ((time - window_.begin) / window_.length) * (width - LEFT);
  const draw = () => drawTimeline(canvas, view, window_, chosen, at, width);
  const resize = () => {
    width = Math.max(300, canvas.parentElement.clientWidth);
    const scale = window.devicePixelRatio || 1;
    const height = TOP + ROW_HEIGHT * view.rows.length + 8;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    draw();
  };
  const zoom = (factor, share = 0.5) => {
    const length = Math.min(end, Math.max(0.5, window_.length * factor));
    window_.begin += (window_.length - length) * share;
    window_.length = length;
    move(0);
  };
  const move = (time) => {
    window_.begin = Math.min(Math.max(0, window_.begin + time), end - window_.length);
    draw();
  };
  const pick = (number) => {
    const span = spans[number];
    if (!span) return;
    chosen = number;
    if (span[1] + span[2] < window_.begin || span[1] > window_.begin + window_.length) {
      window_.begin = span[1] + span[2] / 2 - window_.length / 2;
    }
    move(0);
    said.textContent = `${view.names[span[3]]}: ${timeText(span[2])} from ${timeText(span[1])} on, ${view.rows[span[0]]}`;
    if (span[4] !== null) choose(span[4]);
  };

  canvas.addEventListener(
    "wheel",
    (event) => {
      zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, Math.max(0, event.offsetX - LEFT) / (width - LEFT));
      event.preventDefault();
    },
    { passive: false },
  );
  let from = null;
  let moved = false;
  canvas.addEventListener("pointerdown", (event) => ([from, moved] = [event.offsetX, false]));
  window.addEventListener("pointerup", () => (from = null));
  canvas.addEventListener("pointermove", (event) => {
    if (from === null) return;
    moved ||= Math.abs(event.offsetX - from) > 3;
    move(((from - event.offsetX) / (width - LEFT)) * window_.length);
    from = event.offsetX;
  });
  canvas.addEventListener("click", (event) => {
    if (moved) return;
    const row = Math.floor((event.offsetY - TOP) / ROW_HEIGHT);
    const time = window_.begin + ((event.offsetX - LEFT) / (width - LEFT)) * window_.length;
    const near = (window_.length / (width - LEFT)) * 2;
    pick(spans.findLastIndex((span) => span[0] === row && span[1] - near <= time && time <= span[1] + span[2] + near));
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") move(-window_.length / 8);
    else if (event.key === "ArrowRight") move(window_.length / 8);
    else if (event.key === "+" || event.key === "=") zoom(1 / 1.5);
    else if (event.key === "-") zoom(1.5);
    else if (event.key === "0") zoom(Infinity);
    else if (event.key === "n") pick(chosen + 1);
    else if (event.key === "p") pick(Math.max(0, chosen - 1));
    else return;
    event.preventDefault();
  });
  window.addEventListener("resize", resize);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const hint = html("p", { class: "hint" }, "arrow keys: move · + - 0: zoom · n p: next and previous · wheel and mouse");
  return { element: html("div", { class: "filling" }, hint, html("div", { class: "place" }, canvas), said), shown: resize };
}

function drawTimeline(canvas, view, window_, chosen, at, width) {
  const style = getComputedStyle(canvas);
  const color = (name) => style.getPropertyValue(name).trim();
  const tones = [0, 1, 2, 3, 4, 5].map((number) => color(`--tone${number}`));
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.font = "12px ui-monospace, monospace";
  pen.textBaseline = "middle";
  pen.fillStyle = color("--soft");
  for (let mark = 0; mark <= 5; mark += 1) {
    const time = window_.begin + (window_.length * mark) / 5;
    pen.textAlign = mark === 5 ? "right" : "left";
    pen.fillText(timeText(time), at(time), TOP / 2);
    pen.fillRect(at(time), TOP - 4, 1, 4);
  }
  pen.textAlign = "left";
  view.rows.forEach((title, row) => {
    const y = TOP + ROW_HEIGHT * row;
    pen.fillStyle = color("--line");
    pen.fillRect(0, y + ROW_HEIGHT - 1, width, 1);
    pen.fillStyle = color("--text");
    pen.fillText(title.length > 25 ? `${title.slice(0, 24)}…` : title, 4, y + ROW_HEIGHT / 2);
  });
  view.spans.forEach((span, number) => {
    const [row, begin, duration, name] = span;
    const left = Math.max(LEFT, at(begin));
    const right = Math.min(width, at(begin + duration));
    if (right < LEFT || left > width) return;
    const y = TOP + ROW_HEIGHT * row + 3;
    pen.fillStyle = number === chosen ? color("--chosen") : tones[name % tones.length];
    pen.fillRect(left, y, Math.max(1, right - left), ROW_HEIGHT - 7);
    if (right - left > 40) {
      pen.fillStyle = color("--on-tone");
      pen.fillText(view.names[name].slice(0, Math.floor((right - left - 6) / 7.3)), left + 3, y + (ROW_HEIGHT - 6) / 2);
    }
  });
}

function timeText(microseconds) {
  if (microseconds < 1000) return `${microseconds.toFixed(1)} us`;
  if (microseconds < 1e6) return `${(microseconds / 1000).toFixed(2)} ms`;
  return `${(microseconds / 1e6).toFixed(3)} s`;
}
