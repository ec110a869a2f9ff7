"use strict";
// Values below the pointer or at the arrow keys, and a range by dragging. Texts are set as text, never as HTML.
// The boxes lie outside of the part of the page that is refreshed.

addEventListener("DOMContentLoaded", () => {
  const main = document.getElementById("main");
  const [tip, line, chosen] = ["tip", "cross", "chosen"].map((name) => {
    const box = document.createElement("div");
    box.className = name;
    box.hidden = true;
    document.body.append(box);
    return box;
  });
  let drag = null; // the chart, where it began, and the present place, each as a share of the axis
  let at = null; // the chart and the step that the keys or the pointer are at

  function facts(svg) {
    const around = JSON.parse(svg.closest("[data-plots]").dataset.plots);
    return { ...around, ...JSON.parse(svg.dataset.plot) };
  }

  function scaled(value, sizes) {
    const [size, unit] = sizes.find(([each]) => Math.abs(value) >= each) || sizes[sizes.length - 1];
    return `${Number((value / size).toPrecision(3))} ${unit}`;
  }

  function text(value, unit) {
    if (value === null || value === undefined) return "–";
    if (Array.isArray(value)) return `${text(value[0], unit)} to ${text(value[1], unit)}`;
    if (unit === "ms") return value ? scaled(value, [[864e5, "d"], [36e5, "h"], [6e4, "min"], [1e3, "s"], [1, "ms"]]) : "none";
    if (unit === "bytes") return scaled(value, [[2 ** 30, "GB"], [2 ** 20, "MB"], [1024, "kB"], [1, "B"]]);
    const number = value.toLocaleString("en", { maximumSignificantDigits: 6 });
    return unit === "rate" ? `${number}/s` : number;
  }

  function time(ms) {
    return new Date(ms).toISOString().replace("T", " ").slice(0, 19);
  }

  function place(box, left, top, width, height) {
    Object.assign(box.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    box.hidden = false;
  }

  function share(svg, event) {
    const box = svg.getBoundingClientRect();
    const { left, right } = facts(svg);
    return Math.min(Math.max(((event.clientX - box.left) / box.width - left) / (right - left), 0), 1);
  }

  function show(svg, step) {
    const all = facts(svg);
    const count = Math.round((all.end - all.start) / all.step);
    at = { svg, step: Math.min(Math.max(step, 0), count - 1) };
    const from = all.start + at.step * all.step;
    const rows = [`${time(from)} UTC`, ...all.lines.map(([name, values]) => `${name} ${text(values[at.step], all.unit)}`)];
    const near = Math.max(all.step, (all.end - all.start) / 60);
    rows.push(...all.marks.filter(([ms]) => Math.abs(ms - from - all.step / 2) <= near / 2).slice(0, 4).map(([ms, said]) => `${time(ms).slice(11)} ${said}`));
    tip.replaceChildren(...rows.map((row) => Object.assign(document.createElement("p"), { textContent: row })));
    const box = svg.getBoundingClientRect();
    const x = box.left + box.width * (all.left + (all.right - all.left) * ((at.step + 0.5) / count));
    place(line, x, box.top, 1, box.height * 0.83);
    tip.hidden = false;
    const wide = tip.offsetWidth;
    tip.style.left = `${Math.min(Math.max(x + 12 + wide > innerWidth ? x - wide - 12 : x + 12, 4), Math.max(innerWidth - wide - 4, 4))}px`;
    tip.style.top = `${Math.max(box.top - tip.offsetHeight - 4, 4)}px`;
  }

  function hide() {
    at = null;
    for (const box of [tip, line, chosen]) box.hidden = true;
  }

  function stepAt(svg, part) {
    const all = facts(svg);
    return Math.floor(part * ((all.end - all.start) / all.step));
  }

  main.addEventListener("pointermove", (event) => {
    const svg = drag ? drag.svg : event.target.closest("svg[data-plot]");
    if (!svg || !svg.isConnected) return hide();
    const part = share(svg, event);
    show(svg, stepAt(svg, part));
    if (!drag) return;
    drag.to = part;
    const box = svg.getBoundingClientRect();
    const { left, right } = facts(svg);
    const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    place(chosen, box.left + box.width * (left + (right - left) * low), box.top, box.width * (right - left) * (high - low), box.height * 0.83);
  });
  main.addEventListener("pointerdown", (event) => {
    const svg = event.target.closest("svg[data-plot]");
    if (!svg || event.button !== 0) return;
    drag = { svg, from: share(svg, event), to: share(svg, event) };
    main.setPointerCapture(event.pointerId);
    event.preventDefault();
    svg.focus({ preventScroll: true });
    show(svg, stepAt(svg, drag.from)); // a finger that taps does not move
  });
  main.addEventListener("pointerup", () => {
    const done = drag;
    drag = null;
    if (!done || Math.abs(done.from - done.to) < 0.02) return;
    const { start, end } = facts(done.svg);
    const ends = [done.from, done.to].sort((one, other) => one - other).map((part) => Math.round(start + part * (end - start)));
    location.href = done.svg.closest("[data-link]").dataset.link + ends.join("-");
  });
  main.addEventListener("pointercancel", () => { drag = null; hide(); });
  main.addEventListener("pointerleave", (event) => { if (!drag && event.pointerType === "mouse") hide(); });
  main.addEventListener("focusout", hide);
  main.addEventListener("keydown", (event) => {
    const svg = event.target.closest("svg[data-plot]");
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (svg && event.key === "Escape") hide();
    if (!svg || !by) return;
    event.preventDefault();
    show(svg, at && at.svg === svg ? at.step + by : stepAt(svg, by > 0 ? 0 : 1));
  });
  addEventListener("scroll", hide, { passive: true });
});
