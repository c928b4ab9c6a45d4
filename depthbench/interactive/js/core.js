/* What both live figures share: elements, scales, markers, numbers. No dependency, no global, no network. */
const SVG_NS = "http://www.w3.org/2000/svg";

function svg(name, attrs, parent, text) {
  const node = document.createElementNS(SVG_NS, name);
  for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function html(name, props, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (key.includes("-") || key === "role") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children);
  return node;
}

/* 405406720 -> "405,406,720" */
function whole(n) { return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ","); }

/* 405406720 -> "405.4M" */
function short(n) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(n) >= size) return (n / size).toFixed(1) + unit;
  }
  return String(n);
}

/* A mapping from [low, high] to pixels, linear or logarithmic. */
function scale(domain, range, log) {
  const f = log ? Math.log : (v) => v;
  const low = f(domain[0]);
  const span = f(domain[1]) - low || 1;
  return (v) => range[0] + ((f(v) - low) / span) * (range[1] - range[0]);
}

/* About `count` round numbers between low and high. */
function ticks(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(k * step);
  return { step, values: out };
}

function polygon(x, y, radii, turn) {
  return radii.map((r, i) => {
    const angle = turn + (2 * Math.PI * i) / radii.length;
    return `${i ? "L" : "M"}${(x + r * Math.sin(angle)).toFixed(2)} ${(y - r * Math.cos(angle)).toFixed(2)}`;
  }).join("") + "Z";
}

/* The matplotlib markers of depthbench.figures, as SVG paths; an unknown code is drawn as a circle. */
function markerPath(code, x, y, r) {
  const even = (n, size, turn) => polygon(x, y, Array(n).fill(size), turn);
  const spiky = (n, out, inner) => polygon(x, y, Array.from({ length: 2 * n }, (_, i) => (i % 2 ? inner : out)), 0);
  const rotated = { "^": 0, ">": Math.PI / 2, v: Math.PI, "<": -Math.PI / 2 };
  if (code in rotated) return even(3, r * 1.3, rotated[code]);
  if (code === "s") return even(4, r * 1.3, Math.PI / 4);
  if (code === "D" || code === "d") return even(4, r * 1.3, 0);
  if (code === "p") return even(5, r * 1.2, 0);
  if (code === "h" || code === "H") return even(6, r * 1.15, 0);
  if (code === "*") return spiky(5, r * 1.5, r * 0.65);
  if (code === "P" || code === "X") {
    const t = r * 0.45, e = r * 1.25, turn = code === "X" ? Math.PI / 4 : 0;
    const corners = [[-t, -e], [t, -e], [t, -t], [e, -t], [e, t], [t, t], [t, e], [-t, e], [-t, t], [-e, t], [-e, -t], [-t, -t]];
    return corners.map(([u, v], i) => {
      const px = x + u * Math.cos(turn) - v * Math.sin(turn);
      const py = y + u * Math.sin(turn) + v * Math.cos(turn);
      return `${i ? "L" : "M"}${px.toFixed(2)} ${py.toFixed(2)}`;
    }).join("") + "Z";
  }
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
}

/* Draw now and again whenever the width of the figure changes. */
function onWidth(node, draw) {
  let last = 0;
  const check = () => {
    const width = Math.max(280, Math.floor(node.clientWidth));
    if (width !== last) { last = width; draw(width); }
  };
  check();
  if (window.ResizeObserver) new ResizeObserver(check).observe(node);
}
