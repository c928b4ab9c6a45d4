/* Shapes at a fixed budget: slide the depth, see the width it costs. Needs core.js and solve.js. */
function shapesFigure(root, data) {
  const suites = new Map(data.suites.map((suite) => [suite.name, suite]));
  const designs = new Map(data.designs.map((design) => [design.design, design]));
  const state = { suite: data.start.suite, n_layers: data.start.n_layers, design: data.start.design };
  const fields = {};

  function field(key, text, input) {
    fields[key] = input;
    input.setAttribute("aria-label", text);
    input.addEventListener(input.tagName === "SELECT" ? "change" : "input", () => changed(key));
    return html("label", {}, text, input);
  }
  const choice = (pairs) => html("select", {}, ...pairs.map(([value, text]) => html("option", { value }, text)));
  const number = (min) => html("input", { type: "number", min, step: "any" });

  const controls = html("div", { className: "db-controls" },
    field("suite", "start from", choice([...data.suites.map((s) => [s.name, s.title]), ["", "own numbers"]])),
    field("hold", "held fixed", choice([["total", "total parameters"], ["backbone", "backbone only"]])),
    field("budget", "budget, millions", number(0)),
    field("vocab_size", "vocabulary", number(1)),
    field("n_heads", "heads", number(1)),
    field("n_kv_heads", "key-value heads", number(1)),
    field("ffn", "feed-forward rule", choice(data.ffn_rules)),
    field("design", "design", choice(data.designs.map((d) => [d.design, d.label]))));
  const depth = html("input", { type: "range", step: 1, min: 1 });
  const depthText = html("span", {});
  const drawing = html("div", { className: "db-draw" });
  const chart = svg("svg", { role: "img" });
  const stops = html("div", { className: "db-bar", role: "group", "aria-label": "shapes of the suite" });
  const sentence = html("output", { className: "db-readout", "aria-live": "polite" });
  const split = html("div", { className: "db-split", role: "img" });
  const values = html("dl", { className: "db-values" });
  drawing.append(chart);
  depth.addEventListener("input", () => { state.n_layers = +depth.value; render(); });
  root.append(controls, html("label", { className: "db-depth" }, depthText, depth), stops, drawing, sentence, split, values);

  function load(suite) {
    fields.hold.value = suite.hold;
    fields.budget.value = suite.budget / 1e6;
    for (const key of ["vocab_size", "n_heads", "n_kv_heads", "ffn"]) fields[key].value = suite[key];
    const depths = suite.shapes.map((s) => s.n_layers);
    depth.min = Math.max(1, Math.floor(0.75 * Math.min(...depths)));
    depth.max = Math.ceil(Math.max(...depths) * 1.3);
  }

  function changed(key) {
    if (key === "suite") {
      state.suite = fields.suite.value;
      if (suites.has(state.suite)) {
        load(suites.get(state.suite));
        state.n_layers = suites.get(state.suite).base_layers;
      }
    } else if (key === "design") {
      state.design = fields.design.value;
    } else {
      state.suite = fields.suite.value = "";
    }
    render();
  }

  function request(layers) {
    const read = (key) => Number(fields[key].value);
    return {
      hold: fields.hold.value, budget: Math.round(read("budget") * 1e6), n_layers: layers, vocab_size: read("vocab_size"),
      n_heads: read("n_heads"), n_kv_heads: read("n_kv_heads"), ffn: fields.ffn.value,
      extra: designs.get(state.design).extra, tolerance: data.tolerance,
    };
  }

  function published(layers) {
    const suite = suites.get(state.suite);
    return suite ? suite.shapes.find((s) => s.n_layers === layers) : undefined;
  }

  function render() {
    state.n_layers = Math.min(+depth.max, Math.max(+depth.min, state.n_layers));
    depth.value = state.n_layers;
    depthText.textContent = `depth: ${state.n_layers} layers (same budget, other shape)`;
    const found = solveShape(request(state.n_layers));
    const suite = suites.get(state.suite);
    stops.replaceChildren(...(suite ? suite.shapes : []).map((shape) => {
      const button = html("button", { type: "button", "aria-pressed": String(shape.n_layers === state.n_layers) }, `${shape.n_layers} x ${shape.d_model}`);
      button.addEventListener("click", () => { state.n_layers = shape.n_layers; render(); stops.children[suite.shapes.indexOf(shape)].focus(); });
      return button;
    }));
    sentence.classList.toggle("db-problem", Boolean(found.problem));
    tell(found);
    draw(found);
  }

  function tell(found) {
    values.replaceChildren();
    split.replaceChildren();
    split.hidden = Boolean(found.problem);
    if (found.problem) { sentence.textContent = `No shape: ${found.problem}`; return; }
    const { shape, count } = found;
    const percent = (part) => `${((100 * part) / count.total).toFixed(1)} %`;
    const away = count.held - found.budget;
    const sign = away < 0 ? "-" : "+";
    const distance = `${sign}${whole(Math.abs(away))} (${sign}${Math.abs((100 * away) / found.budget).toFixed(2)} %)`;
    const paper = published(state.n_layers);
    let note = "";
    if (paper) {
      note = paper.d_model === shape.d_model && paper.d_ff === shape.d_ff
        ? " This is the shape of the suite." : ` The suite has d_model ${paper.d_model} and d_ff ${paper.d_ff} here.`;
    }
    sentence.textContent = `${state.n_layers} layers of width ${shape.d_model}: ${whole(count.total)} parameters, aspect ratio ${(shape.d_model / state.n_layers).toFixed(2)}.${note}`;
    const rows = [
      ["d_model", shape.d_model], ["d_ff", shape.d_ff], ["head_dim", shape.d_model / shape.n_heads],
      ["d_model / n_layers", (shape.d_model / state.n_layers).toFixed(2)],
      ["total", whole(count.total)], ["backbone", `${whole(count.backbone)}`], ["embedding", whole(count.embedding)],
      ["design's own", whole(count.design)], ["from the budget", distance],
    ];
    const parts = [["backbone", count.backbone], ["embedding", count.embedding], ["design", count.design]].filter(([, n]) => n > 0);
    for (const [name, n] of parts) {
      const bar = html("span", { className: `db-${name}`, title: `${name} ${percent(n)}` });
      bar.style.width = percent(n).replace(" ", "");
      split.append(bar);
    }
    split.setAttribute("aria-label", parts.map(([name, n]) => `${name} ${percent(n)}`).join(", "));
    rows.push(["split", parts.map(([name, n]) => `${name} ${percent(n)}`).join(", ")]);
    for (const [name, value] of rows) {
      const wide = name === "split" || name === "from the budget";
      values.append(html("div", { className: wide ? "db-wide" : "" }, html("dt", {}, name), html("dd", {}, String(value))));
    }
  }

  /* The layers as bars, attention as high as d_model and feed-forward as d_ff, along the curve of all shapes of this budget. */
  function draw(found) {
    const width = Math.max(280, drawing.clientWidth), height = Math.max(240, Math.min(320, width * 0.45)), pad = { l: 60, r: 10, t: 10, b: 40 };
    chart.replaceChildren();
    chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.setAttribute("height", height);
    const way = [];
    for (let layers = +depth.min; layers <= +depth.max; layers++) {
      const other = solveShape(request(layers));
      if (!other.problem) way.push({ layers, d: other.shape.d_model, ff: other.shape.d_ff });
    }
    const top = Math.max(...way.map((p) => p.ff), 1);
    const X = scale([0, +depth.max], [pad.l, width - pad.r], false), Y = scale([0, top], [height - pad.b, pad.t], false);
    for (const v of ticks(0, top, 4).values) {
      svg("line", { x1: pad.l, x2: width - pad.r, y1: Y(v), y2: Y(v), class: "db-grid" }, chart);
      svg("text", { x: pad.l - 5, y: Y(v) + 4, "text-anchor": "end" }, chart, String(v));
    }
    for (const v of ticks(0, +depth.max, width < 500 ? 5 : 8).values) svg("text", { x: X(v), y: height - pad.b + 16, "text-anchor": "middle" }, chart, String(v));
    svg("text", { x: (pad.l + width - pad.r) / 2, y: height - 6, "text-anchor": "middle" }, chart, "layers");
    svg("text", { x: 11, y: (pad.t + height - pad.b) / 2, "text-anchor": "middle", transform: `rotate(-90 11 ${(pad.t + height - pad.b) / 2})` }, chart, "width");
    if (!found.problem) {
      const step = X(1) - X(0), bar = (x, value, name) => svg("rect", {
        x, y: Y(value), width: Math.max(0.8, step / 2 - Math.min(1, step / 8)), height: Y(0) - Y(value), class: `db-block ${name}` }, chart);
      for (let l = 0; l < state.n_layers; l++) {
        bar(X(l), found.shape.d_model, "db-attention");
        bar(X(l) + step / 2, found.shape.d_ff, "db-ffn");
      }
    }
    svg("path", { d: way.map((p, i) => `${i ? "L" : "M"}${X(p.layers).toFixed(1)} ${Y(p.d).toFixed(1)}`).join(""), class: "db-way" }, chart);
    const suite = suites.get(state.suite);
    for (const shape of suite ? suite.shapes : []) svg("circle", { cx: X(shape.n_layers), cy: Y(shape.d_model), r: 4, class: `db-stop${shape.n_layers === state.n_layers ? " db-here" : ""}` }, chart);
    const said = found.problem ? "No layers are drawn." : `${state.n_layers} layers, attention ${found.shape.d_model} and feed-forward ${found.shape.d_ff} high.`;
    chart.setAttribute("aria-label", `Layers drawn to scale on the curve of all shapes with this budget. ${said}`);
  }

  fields.suite.value = state.suite;
  fields.design.value = state.design;
  load(suites.get(state.suite) || data.suites[0]);
  onWidth(drawing, render);
}
