"use strict";
// The language, and readouts of charts. Everything else in the page works without.
const root = document.documentElement;
const speak = (language) => {
  root.lang = language;
  for (const time of document.querySelectorAll("time[data-at]")) {
    time.textContent = new Date(Number(time.dataset.at)).toLocaleString(language === "zh" ? "zh-CN" : "en-GB");
  }
};
const keep = (language) => { try { localStorage.setItem("language", language); } catch { /* not from a file */ } };
const kept = () => { try { return localStorage.getItem("language"); } catch { return null; } };
speak(kept() === "zh" || (!kept() && navigator.language.startsWith("zh")) ? "zh" : "en");
for (const button of document.querySelectorAll(".language")) {
  button.addEventListener("click", () => {
    const other = root.lang === "zh" ? "en" : "zh";
    keep(other);
    speak(other);
  });
}

const said = {
  number: (x) => (Math.abs(x) >= 1000 ? x.toFixed(0) : x.toPrecision(4)),
  rate: (x) => x.toExponential(2),
  seconds: (x) => (x < 10 ? x.toFixed(3) : x.toFixed(1)) + " s",
  bytes: (x) => (x >= 2 ** 30 ? (x / 2 ** 30).toFixed(2) + " GiB" : (x / 2 ** 20).toFixed(1) + " MiB"),
};

// The point of a line that is nearest to x; lines go from left to right.
const nearest = (points, x) => {
  let low = 0, high = points.numberOfItems - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points.getItem(middle).x < x) low = middle; else high = middle;
  }
  const [a, b] = [points.getItem(low), points.getItem(high)];
  return x - a.x < b.x - x ? a : b;
};

for (const plot of document.querySelectorAll(".plot")) {
  const lines = [...plot.querySelectorAll("polyline")];
  const cursor = plot.querySelector(".cursor");
  const output = plot.previousElementSibling;
  const stacked = plot.parentElement.classList.contains("stacked");
  const [x0, x1, y0, y1] = ["x0", "x1", "y0", "y1"].map((key) => Number(plot.dataset[key]));
  let at = null;
  const show = (x) => {
    at = Math.min(1000, Math.max(0, x));
    const first = nearest(lines[0].points, at);
    cursor.hidden = false;
    cursor.style.left = first.x / 10 + "%";
    const parts = [`${plot.dataset["across" + (root.lang === "zh" ? "Zh" : "En")]} ${Math.round(x0 + (first.x / 1000) * (x1 - x0))}`];
    let below = 0;
    for (const line of lines) {
      const y = y0 + (1 - nearest(line.points, at).y / 1000) * (y1 - y0);
      parts.push(`${line.dataset[root.lang]} ${said[plot.dataset.form](stacked ? Math.max(0, y - below) : y)}`);
      below = y;
    }
    output.textContent = parts.join(" · ");
  };
  const hide = () => { cursor.hidden = true; at = null; output.textContent = ""; };
  const move = (event) => {
    const box = plot.getBoundingClientRect();
    show(((event.clientX - box.left) / box.width) * 1000);
  };
  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerdown", move);
  plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) hide(); });
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -10, ArrowRight: 10, PageDown: 100, PageUp: -100 }[event.key];
    if (step) show((at ?? (step > 0 ? -10 : 1010)) + step);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(1000);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}

// One sound at a time.
document.addEventListener("play", (event) => {
  for (const sound of document.querySelectorAll("audio")) {
    if (sound !== event.target) sound.pause();
  }
}, true);
