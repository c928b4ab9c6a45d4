/* Loss over shapes: one panel per origin, never both on one axis. Needs core.js. */
const LOSS_HELP = "Tab to a chart, then the arrow keys: left and right along a design, up and down to the next design.";

/* One panel: a chart with its own axes, and its own read-out below. */
function lossPanel(root, panel, state, api) {
  const box = html("section", { className: "db-panel" });
  const heading = html("p", { className: "db-title" }, panel.title);
  const chart = svg("svg", { role: "group", "aria-label": `${panel.title}. ${LOSS_HELP}`, class: `db-${panel.origin}` });
  const readout = html("output", { className: "db-readout", "aria-live": "polite" }, panel.hint);
  box.append(heading, chart, readout, ...panel.notes.map((text) => html("p", { className: "db-note" }, text)));
  root.append(box);
  const all = panel.series.flatMap((s) => s.points);
  if (!all.length) { chart.remove(); readout.textContent = panel.empty; return { refresh() {} }; }

  let current = { s: 0, i: 0 };
  const nodes = [];
  const show = (s, i) => { readout.textContent = panel.series[s].points[i].text; };
  const focus = (s, i) => {
    nodes[current.s][current.i].setAttribute("tabindex", "-1");
    current = { s, i };
    nodes[s][i].setAttribute("tabindex", "0");
    nodes[s][i].focus();
  };
  const visible = (s) => state.pinned === null || state.pinned === panel.series[s].design;

  function move(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" || event.key === " ") { api.pin(panel.series[current.s].design); event.preventDefault(); return; }
    if (event.key === "Escape") { api.pin(null); return; }
    if (!steps) return;
    event.preventDefault();
    const here = panel.series[current.s].points;
    if (!steps[0]) { focus(current.s, Math.min(here.length - 1, Math.max(0, current.i + steps[1]))); return; }
    for (let s = current.s + steps[0]; s >= 0 && s < panel.series.length; s += steps[0]) {
      if (!visible(s)) continue;
      const at = here[current.i].n_layers;
      const near = panel.series[s].points.map((p) => Math.abs(p.n_layers - at));
      focus(s, near.indexOf(Math.min(...near)));
      return;
    }
  }

  function draw(width) {
    chart.replaceChildren();
    nodes.length = 0;
    const height = Math.max(240, Math.min(340, width * 0.55));
    const pad = { l: 54, r: 16, t: 34, b: 44 };
    chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.setAttribute("height", height);
    const ratios = all.map((p) => p.aspect_ratio);
    const spread = all.flatMap((p) => [p.value - p.band, p.value + p.band]);
    const low = Math.min(...spread), high = Math.max(...spread), room = (high - low || 0.02) * 0.08;
    /* shallow and wide on the left, deep and narrow on the right */
    const edge = Math.max(...ratios) / Math.min(...ratios) > 1.01 ? 1.06 : 1.5;
    const X = scale([Math.max(...ratios) * edge, Math.min(...ratios) / edge], [pad.l, width - pad.r], true);
    const Y = scale([low - room, high + room], [height - pad.b, pad.t], false);
    const grid = ticks(low - room, high + room, 5);
    const digits = Math.max(0, -Math.floor(Math.log10(grid.step) + 1e-9));
    for (const v of grid.values) {
      svg("line", { x1: pad.l, x2: width - pad.r, y1: Y(v), y2: Y(v), class: "db-grid" }, chart);
      svg("text", { x: pad.l - 6, y: Y(v) + 4, "text-anchor": "end" }, chart, v.toFixed(digits));
    }
    let edgeLeft = -Infinity;
    const columns = [...new Map(all.map((p) => [`${p.n_layers}/${p.d_model}`, p])).values()];
    for (const p of columns.sort((a, b) => b.aspect_ratio - a.aspect_ratio)) {
      const x = X(p.aspect_ratio);
      svg("line", { x1: x, x2: x, y1: pad.t, y2: height - pad.b, class: "db-grid" }, chart);
      if (x - edgeLeft < 26) continue;
      edgeLeft = x;
      svg("text", { x, y: height - pad.b + 16, "text-anchor": "middle" }, chart, p.aspect_ratio.toFixed(p.aspect_ratio < 10 ? 1 : 0));
      svg("text", { x, y: pad.t - 6, "text-anchor": "middle" }, chart, p.n_layers);
    }
    const middle = (pad.l + width - pad.r) / 2;
    svg("text", { x: middle, y: height - 8, "text-anchor": "middle" }, chart, width < 480 ? "d_model / n_layers (deeper to the right)" : "aspect ratio d_model / n_layers (deeper and narrower to the right)");
    svg("text", { x: middle, y: 12, "text-anchor": "middle" }, chart, "layers");
    svg("text", { x: 12, y: (pad.t + height - pad.b) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(pad.t + height - pad.b) / 2})` }, chart, panel.ylabel);

    panel.series.forEach((series, s) => {
      const group = svg("g", { class: "db-series", "data-design": series.design }, chart);
      group.style.setProperty("--db-color", series.color);
      const line = series.points.map((p, i) => `${i ? "L" : "M"}${X(p.aspect_ratio).toFixed(1)} ${Y(p.value).toFixed(1)}`).join("");
      if (panel.joined) svg("path", { d: line, class: "db-line", "stroke-dasharray": series.dash.map((n) => 1.6 * n).join(" ") || "none" }, group);
      svg("path", { d: line, class: "db-hit" }, group).addEventListener("click", () => api.pin(series.design));
      nodes.push(series.points.map((p, i) => {
        const x = X(p.aspect_ratio), y = Y(p.value);
        if (p.band > 0) svg("line", { x1: x, x2: x, y1: Y(p.value - p.band), y2: Y(p.value + p.band), class: "db-band" }, group);
        const node = svg("g", { class: "db-point", role: "img", tabindex: s === current.s && i === current.i ? "0" : "-1", "aria-label": p.text }, group);
        svg("circle", { cx: x, cy: y, r: 12, class: "db-hit" }, node);
        svg("path", { d: markerPath(series.marker, x, y, 5), class: "db-mark" }, node);
        node.addEventListener("pointerenter", () => show(s, i));
        node.addEventListener("focus", () => { nodes[current.s][current.i].setAttribute("tabindex", "-1"); current = { s, i }; node.setAttribute("tabindex", "0"); show(s, i); });
        node.addEventListener("click", () => { show(s, i); api.pin(series.design); });
        return node;
      }));
    });
    refresh();
  }

  function refresh() {
    for (const group of chart.querySelectorAll("g.db-series")) {
      group.classList.toggle("db-dim", state.pinned !== null && state.pinned !== group.dataset.design);
    }
  }
  chart.addEventListener("keydown", move);
  onWidth(box, draw);
  return { refresh };
}

function lossFigure(root, data) {
  const state = { view: 0, pinned: null };
  const body = html("div", {});
  const legend = html("div", { className: "db-legend", role: "group", "aria-label": "designs: press one to highlight it" });
  let panels = [];
  const buttons = data.designs.map((design) => {
    const mark = svg("svg", { viewBox: "0 0 20 20", width: 18, height: 18, class: "db-series", "aria-hidden": "true" });
    mark.style.setProperty("--db-color", design.color);
    svg("path", { d: markerPath(design.marker, 10, 10, 5), class: "db-mark" }, mark);
    const button = html("button", { type: "button", "aria-pressed": "false" }, mark, design.label);
    button.addEventListener("click", () => api.pin(design.design));
    legend.append(button);
    return button;
  });
  const api = {
    pin(design) {
      state.pinned = design === state.pinned ? null : design;
      buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(data.designs[i].design === state.pinned)));
      panels.forEach((p) => p.refresh());
    },
  };
  const views = html("div", { className: "db-bar", role: "group", "aria-label": "which published numbers" });
  const choices = data.views.map((view, v) => {
    const button = html("button", { type: "button", "aria-pressed": String(v === 0) }, view.label);
    button.addEventListener("click", () => { state.view = v; render(); });
    views.append(button);
    return button;
  });
  const measured = html("div", {});
  root.append(views, legend, body, measured, html("p", { className: "db-note" }, `Press a design to highlight it, again to let go. ${LOSS_HELP}`));
  if (data.views.length < 2) views.remove();
  const own = data.measured.map((panel) => lossPanel(measured, panel, state, api));
  function render() {
    body.replaceChildren();
    choices.forEach((b, v) => b.setAttribute("aria-pressed", String(v === state.view)));
    panels = data.views.length ? [lossPanel(body, data.views[state.view], state, api), ...own] : own;
    panels.forEach((p) => p.refresh());
  }
  render();
}
