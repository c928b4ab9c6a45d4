/* The rule of depthbench.shapes.solve, to the unit; tests/test_interactive.py holds the two together. */
function feedForwardWidth(d, rule) {
  if (rule === "fill") return 2 * Math.floor((8 * d + 3) / 6);
  return rule === "3d" ? 3 * d : 16 * Math.ceil((8 * d) / 48);
}

/* Exact counts of a shape; `extra` holds the coefficients of the design's own parameters (Ldk: layers x width x key width, ...). */
function countParams(shape, extra) {
  const L = shape.n_layers, d = shape.d_model, k = (d / shape.n_heads) * shape.n_kv_heads;
  const terms = { 1: 1, L, d, Ld: L * d, dd: d * d, Ldd: L * d * d, dk: d * k, Ldk: L * d * k };
  let design = 0;
  for (const [term, factor] of Object.entries(extra)) design += factor * terms[term];
  const backbone = L * (2 * d * d + 2 * d * k + 3 * d * shape.d_ff + 2 * d);
  const embedding = 2 * shape.vocab_size * d;
  return { total: backbone + embedding + design + d, backbone, embedding, design };
}

/* Of all widths that are multiples of 2 n_heads, the one whose size is nearest to the budget; of two equally near, the narrower. */
function solveShape(request) {
  const { hold, budget, n_layers, n_heads, n_kv_heads, vocab_size, ffn, extra, tolerance } = request;
  const counts = { "depth": n_layers, "vocabulary": vocab_size, "heads": n_heads, "key-value heads": n_kv_heads };
  for (const [name, value] of Object.entries(counts)) {
    if (!Number.isInteger(value) || value < 1) return { problem: `${name} must be a whole number from 1 up.` };
  }
  if (!(budget > 0 && budget < 1e15)) return { problem: "the budget must be a positive number of parameters." };
  if (n_heads % n_kv_heads) return { problem: `${n_kv_heads} key-value heads do not divide ${n_heads} heads; take a divisor.` };
  const step = 2 * n_heads;
  const at = (steps) => {
    const d_model = steps * step;
    return sized({ n_layers, d_model, n_heads, n_kv_heads, d_ff: feedForwardWidth(d_model, ffn), vocab_size });
  };
  const sized = (shape) => {
    const count = countParams(shape, extra);
    count.held = hold === "total" ? count.total : count.backbone + count.design;
    return { shape, count, budget };
  };
  /* d_ff moved by steps of 2 to take up what the width leaves of the budget. */
  const fill = ({ shape, count }) => {
    const steps = Math.floor((budget - count.held) / (6 * shape.d_model * n_layers) + 0.5);
    return sized({ ...shape, d_ff: Math.max(2, shape.d_ff + 2 * steps) });
  };
  let high = 1;
  while (at(high).count.held < budget) high *= 2;
  let low = Math.floor(high / 2);
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (at(middle).count.held < budget) low = middle; else high = middle;
  }
  const near = [low, high].filter((steps) => steps > 0).map(at);
  const gap = (found) => Math.abs(found.count.held - budget);
  const stretch = ({ shape }) => Math.abs(Math.log((3 * shape.d_ff) / (8 * shape.d_model)));
  const measure = ffn === "fill" ? stretch : gap, found = ffn === "fill" ? near.map(fill) : near;
  const best = found.length === 2 && measure(found[1]) < measure(found[0]) ? found[1] : found[0];
  if (Math.abs(best.count.held / budget - 1) > tolerance) {
    const words = near.map((f) => `width ${f.shape.d_model} gives ${short(f.count.held)}`).join(", ");
    return {
      problem: `no width of ${n_layers} layers comes within ${100 * tolerance} % of ${short(budget)}: widths go in steps of ${step}, and ${words}. ` +
        "Take fewer heads (finer steps), another depth or another budget.",
    };
  }
  return best;
}
