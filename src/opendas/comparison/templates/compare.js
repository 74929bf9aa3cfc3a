"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const reference = data.sources.length - 1;
  const others = data.sources.slice(0, -1);
  const numbers = new Intl.NumberFormat("en");
  const whole = (x) => (x === null || x === undefined ? "–" : numbers.format(x));
  const signed = (x) => (x === null ? "–" : (x > 0 ? "+" : x < 0 ? "−" : "") + numbers.format(Math.abs(x)));
  const decimal = (x, digits = 2) => (x === null || x === undefined ? "–" : x.toFixed(digits));
  const signedDecimal = (x, digits = 2) => (x === null || x === undefined ? "–" : (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(digits));
  const FIRST = 25;
  const state = { view: 0, level: 0, variable: 0, source: 0, show: "difference", chosen: -1, sort: "size", down: true, rows: FIRST, find: "" };
  let shown, order = [], classes = [], paths = null, camera = { scale: 1, x: 0, y: 0 };

  const view = () => data.views[state.view];
  const level = () => view().levels[state.level];
  const drawing = () => data.drawings[view().drawing];
  const variable = () => level().variables[state.variable];

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") made.textContent = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function fill(select, labels, chosen) {
    select.replaceChildren(...labels.map(([value, text]) => element("option", { value, text })));
    select.value = String(chosen);
    select.parentElement.hidden = labels.length < 2;
  }

  // Figures of one geounit.
  const value = (i) => variable().values[state.source][i];
  const base = (i) => variable().values[reference][i];
  const difference = (i) => value(i) - base(i);
  const percent = (i) => (base(i) ? (100 * difference(i)) / base(i) : null);
  const margins = () => variable().margins[state.source];
  const margin = (i) => (margins() ? margins().values[i] : null);

  const SHOWS = {
    difference: { words: "difference", of: difference, text: signed, diverging: true },
    percent: { words: "difference in per cent", of: percent, text: (x) => (x === null ? "–" : signedDecimal(x, 1) + " %"), diverging: true },
    margin: { words: "margin", of: margin, text: (x) => (x === null ? "–" : "±" + whole(x)), diverging: false },
    value: { words: "count", of: value, text: whole, diverging: false },
  };

  function fillControls() {
    fill(by("view"), data.views.map((v, i) => [i, v.product]), state.view);
    state.level = Math.min(state.level, view().levels.length - 1);
    fill(by("level"), view().levels.map((l, i) => [i, `${l.words} (${whole(l.codes.length)})`]), state.level);
    state.variable = Math.min(state.variable, level().variables.length - 1);
    fill(by("variable"), level().variables.map((v, i) => [i, `${v.label} (${v.name})`]), state.variable);
    fill(by("source"), others.map((name, i) => [i, name]), state.source);
    const kinds = Object.entries(SHOWS).filter(([name]) => name !== "margin" || margins());
    if (!kinds.some(([name]) => name === state.show)) state.show = "difference";
    fill(by("show"), kinds.map(([name, kind]) => [name, name === "margin" ? `margin (${margins().of})` : kind.words]), state.show);
  }

  // Classes: breaks at 1, 2 or 5 times a power of ten.
  function nice(x) {
    if (x <= 0) return 1;
    const power = 10 ** Math.floor(Math.log10(x));
    const digit = x / power;
    return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
  }

  function makeClasses() {
    const found = level().codes.map((_, i) => shown.of(i)).filter((x) => x !== null);
    const sizes = found.map(Math.abs).filter((x) => x > 0).sort((a, b) => a - b);
    const at = (part) => (sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(part * sizes.length))] : 0);
    const least = state.show === "percent" ? 0.01 : 1;
    const breaks = [];
    for (const part of shown.diverging ? [0.4, 0.85] : [0.1, 0.35, 0.6, 0.85]) {
      const next = Math.max(nice(at(part)), least);
      if (!breaks.length || next > breaks[breaks.length - 1]) breaks.push(next);
    }
    const unit = state.show === "percent" ? " %" : "";
    const text = (x) => shown.text(x).replace(" %", "");
    // From a up to, and without, b; of whole numbers the last one is named.
    const range = (a, b) => (unit ? `${text(a)} to below ${text(b)}${unit}` : b - a > 1 ? `${text(a)} to ${text(b - 1)}` : text(a));
    const mirrored = (a, b) => (unit ? `above ${text(-b)} to ${text(-a)}${unit}` : b - a > 1 ? `${text(1 - b)} to ${text(-a)}` : text(-a));
    if (shown.diverging) {
      const [small, large] = breaks.length > 1 ? breaks : [breaks[0], breaks[0] * 5];
      const first = unit ? 0 : 1;
      classes = [
        { color: "--low3", test: (x) => x <= -large, label: `${text(-large)}${unit} or less` },
        { color: "--low2", test: (x) => x <= -small, label: mirrored(small, large) },
        { color: "--low1", test: (x) => x < 0, label: mirrored(first, small) },
        { color: "--zero", test: (x) => x === 0, label: "0" },
        { color: "--high1", test: (x) => x < small, label: range(first, small) },
        { color: "--high2", test: (x) => x < large, label: range(small, large) },
        { color: "--high3", test: () => true, label: `${text(large)}${unit} or more` },
      ];
    } else {
      classes = [{ color: "--many0", test: (x) => x === 0, label: "0" }];
      breaks.forEach((limit, i) => classes.push({ color: `--many${i + 1}`, test: (x) => x < limit, label: range(i ? breaks[i - 1] : least, limit) }));
      classes.push({ color: `--many${breaks.length + 1}`, test: () => true, label: `${text(breaks[breaks.length - 1])} or more` });
    }
    for (const each of classes) each.count = 0;
    level().codes.forEach((_, i) => {
      const x = shown.of(i);
      if (x !== null) classOf(x).count += 1;
    });
    by("legend").replaceChildren(
      ...classes.filter((c) => c.count).map((c) => {
        const swatch = element("i");
        swatch.style.background = `var(${c.color})`;
        return element("li", {}, swatch, `${c.label}: ${whole(c.count)}`);
      })
    );
  }

  const classOf = (x) => classes.find((c) => c.test(x));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The map.
  function makePaths() {
    paths = null;
    const areas = drawing().areas[level().name], points = drawing().points[level().name];
    if (areas) {
      paths = areas.map((rings) => {
        if (!rings) return null;
        const path = new Path2D();
        let box = [Infinity, Infinity, -Infinity, -Infinity];
        for (const ring of rings) {
          let x = 0, y = 0;
          for (let k = 0; k < ring.length; k += 2) {
            x += ring[k]; y += ring[k + 1];
            if (k) path.lineTo(x, y); else path.moveTo(x, y);
            box = [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)];
          }
          path.closePath();
        }
        return { path, box };
      });
    } else if (points) {
      const size = Math.max(...variable().values[reference], 1);
      const n = points.length;
      const radius = (drawing().width / Math.sqrt(n)) * 0.35;
      paths = points.map((at, i) => at && { at, radius: radius * (0.35 + 0.65 * Math.sqrt(base(i) / size)) });
    }
    const missing = paths ? paths.filter((p) => !p).length : 0;
    by("map").closest("figure").hidden = !drawing().width;
    const kind = areas ? "shapes" : "points of the official file, larger where more people live";
    by("map-words").textContent = paths
      ? `${shown.words[0].toUpperCase()}${shown.words.slice(1)}: ${variable().label}, ${level().words}; ${kind}.${missing ? ` ${whole(missing)} have no place and are not drawn.` : ""} Drag or use arrow keys to move, + and − to zoom.`
      : `There are no shapes or points of ${level().words}.`;
    by("map").setAttribute("aria-label", `Map: ${by("map-words").textContent} The table below holds the same figures.`);
  }

  function sized(canvas, height) {
    const width = canvas.parentElement.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height, ratio };
  }

  const mapHeight = () => Math.max(280, Math.min(640, Math.round(window.innerHeight * 0.62)));

  function fit() {
    const width = by("map").parentElement.clientWidth;
    const scale = Math.min(width / drawing().width, mapHeight() / drawing().height);
    camera = { scale, x: (width - drawing().width * scale) / 2, y: (mapHeight() - drawing().height * scale) / 2 };
  }

  function drawMap() {
    if (!drawing().width) return;
    const { context, ratio } = sized(by("map"), mapHeight());
    if (!paths) return;
    context.setTransform(ratio * camera.scale, 0, 0, ratio * camera.scale, ratio * camera.x, ratio * camera.y);
    const colors = new Map(classes.map((c) => [c, css(c.color)]));
    const edge = css("--edge"), ink = css("--ink"), none = css("--none");
    const many = paths.length > 3000;
    const trace = (each) => {
      if (each.path) return each.path;
      const circle = new Path2D();
      const least = 1.6 / camera.scale;
      circle.arc(each.at[0], each.at[1], Math.max(each.radius, least), 0, 7);
      return circle;
    };
    paths.forEach((each, i) => {
      if (!each) return;
      const x = shown.of(i);
      const path = trace(each);
      context.fillStyle = x === null ? none : colors.get(classOf(x));
      context.fill(path, "evenodd");
      context.lineWidth = 0.5 / camera.scale;
      context.strokeStyle = many ? context.fillStyle : edge; // many borders would be all that is seen
      context.stroke(path);
    });
    if (state.chosen >= 0 && paths[state.chosen]) {
      context.lineWidth = 3 / camera.scale;
      context.strokeStyle = ink;
      context.stroke(trace(paths[state.chosen]));
    }
  }

  function geounitAt(px, py) {
    if (!paths) return -1;
    const x = (px - camera.x) / camera.scale, y = (py - camera.y) / camera.scale;
    const context = by("map").getContext("2d");
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    let found = -1, nearest = 12 / camera.scale;
    for (let i = paths.length - 1; i >= 0; i -= 1) {
      const each = paths[i];
      if (!each) continue;
      if (each.path) {
        const [a, b, c, d] = each.box;
        if (x >= a && x <= c && y >= b && y <= d && context.isPointInPath(each.path, x, y, "evenodd")) { found = i; break; }
      } else {
        const far = Math.hypot(each.at[0] - x, each.at[1] - y) - each.radius;
        if (far < nearest) { nearest = far; found = i; }
      }
    }
    context.restore();
    return found;
  }

  function zoom(factor, px, py) {
    if (!factor) fit();
    else {
      const x = px ?? by("map").clientWidth / 2, y = py ?? by("map").clientHeight / 2;
      camera = { scale: camera.scale * factor, x: x - (x - camera.x) * factor, y: y - (y - camera.y) * factor };
    }
    drawMap();
  }

  // Difference by size.
  const symlog = (x) => Math.sign(x) * Math.log10(1 + Math.abs(x));
  let dots = [];

  function drawScatter() {
    const { context, width, height } = sized(by("scatter"), Math.max(280, Math.min(640, mapHeight())));
    const n = level().codes.length;
    const left = 58, right = 14, top = 14, bottom = 44;
    let most = 1, size = 1;
    for (let i = 0; i < n; i += 1) { most = Math.max(most, Math.abs(difference(i))); size = Math.max(size, base(i)); }
    const x = (v) => left + (symlog(v) / symlog(size)) * (width - left - right);
    const y = (v) => top + (0.5 - symlog(v) / (2 * symlog(most))) * (height - top - bottom);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = css("--muted");
    context.strokeStyle = css("--rule");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const line = (x0, y0, x1, y1) => { context.beginPath(); context.moveTo(x0, y0); context.lineTo(x1, y1); context.stroke(); };
    for (let power = 1; power <= most; power *= 10) {
      for (const tick of most < 100 ? [power, 2 * power, 5 * power] : [power]) {
        for (const sign of tick <= most ? [1, -1] : []) {
          line(left, y(sign * tick), width - right, y(sign * tick));
          context.fillText(signed(sign * tick), left - 8, y(sign * tick));
        }
      }
    }
    context.strokeStyle = css("--edge");
    line(left, y(0), width - right, y(0));
    context.fillText("0", left - 8, y(0));
    context.textAlign = "center";
    context.textBaseline = "top";
    const step = width < 480 ? 100 : 10;
    for (let power = 1; power <= size; power *= step) context.fillText(whole(power), x(power), height - bottom + 8);
    context.fillText("0", x(0), height - bottom + 8);
    context.fillText(`count in ${data.sources[reference]}`, left + (width - left - right) / 2, height - 18);
    context.globalAlpha = n > 2000 ? 0.35 : 0.7;
    context.fillStyle = css("--accent");
    dots = [];
    for (let i = 0; i < n; i += 1) {
      const at = [x(base(i)), y(difference(i))];
      dots.push(at);
      context.beginPath();
      context.arc(at[0], at[1], n > 2000 ? 2 : 3.5, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
    if (state.chosen >= 0) {
      context.strokeStyle = css("--ink");
      context.lineWidth = 2.5;
      context.beginPath();
      context.arc(dots[state.chosen][0], dots[state.chosen][1], 7, 0, 7);
      context.stroke();
      context.lineWidth = 1;
    }
    by("scatter-words").textContent = `Difference by size: each dot is one of the ${whole(n)} ${level().words}; both axes are logarithmic beyond 1.`;
    by("scatter").setAttribute("aria-label", by("scatter-words").textContent);
  }

  function dotAt(px, py) {
    let found = -1, nearest = 10;
    dots.forEach(([x, y], i) => { const far = Math.hypot(x - px, y - py); if (far < nearest) { nearest = far; found = i; } });
    return found;
  }

  // The table.
  const SORTS = {
    name: { words: "Area", of: (i) => level().names[i] },
    size: { words: () => data.sources[reference], of: base },
    value: { words: () => others[state.source], of: value },
    difference: { words: "Difference", of: difference },
    absolute: { words: "Absolute difference", of: (i) => Math.abs(difference(i)) },
    percent: { words: "Per cent", of: percent },
    margin: { words: "Margin", of: margin },
  };

  function makeOrder() {
    const wanted = state.find.trim().toLowerCase();
    const { names, codes } = level();
    order = codes.map((_, i) => i).filter((i) => !wanted || names[i].toLowerCase().includes(wanted) || codes[i].startsWith(wanted));
    const of = SORTS[state.sort].of, way = state.down ? -1 : 1;
    order.sort((i, j) => {
      const a = of(i), b = of(j);
      if (a === null || b === null) return (a === null) - (b === null);
      return way * (typeof a === "string" ? a.localeCompare(b) : a - b) || i - j;
    });
  }

  function drawTable() {
    const columns = Object.keys(SORTS).filter((name) => name !== "absolute" && (name !== "margin" || margins()));
    const head = columns.map((name) => {
      const words = SORTS[name].words;
      const button = element("button", { type: "button", text: typeof words === "function" ? words() : words });
      button.addEventListener("click", () => {
        state.down = state.sort === name ? !state.down : name !== "name";
        state.sort = name;
        makeOrder();
        drawTable();
        by("table").querySelector(`th[data-name="${name}"] button`).focus();
      });
      const sorted = state.sort === name || (name === "difference" && state.sort === "absolute");
      return element("th", { scope: "col", "data-name": name, ...(sorted ? { "aria-sort": state.down ? "descending" : "ascending" } : {}) }, button);
    });
    by("table").tHead.replaceChildren(element("tr", {}, ...head));
    const rows = order.slice(0, state.rows).map((i) => {
      const name = level().names[i], code = level().codes[i];
      const button = element("button", { type: "button", text: `${name} (${code})` });
      button.addEventListener("click", () => choose(i));
      const cells = [whole(base(i)), whole(value(i)), signed(difference(i)), SHOWS.percent.text(percent(i))];
      if (margins()) cells.push(SHOWS.margin.text(margin(i)));
      return element("tr", i === state.chosen ? { class: "chosen" } : {}, element("th", { scope: "row" }, button), ...cells.map((text) => element("td", { text })));
    });
    by("table").tBodies[0].replaceChildren(...rows);
    by("more").hidden = order.length <= state.rows;
    by("count").textContent = order.length ? `${whole(Math.min(state.rows, order.length))} of ${whole(order.length)} shown` : "No area has this name or code.";
  }

  function table(caption, head, rows) {
    const made = element("table", {}, element("caption", { text: caption }));
    const titled = head.map((text) => (text ? element("th", { scope: "col", text }) : element("td")));
    if (head.some((text) => text)) made.append(element("thead", {}, element("tr", {}, ...titled)));
    made.append(element("tbody", {}, ...rows.map(([first, ...rest]) => element("tr", {}, element("th", { scope: "row", text: first }), ...rest.map((text) => element("td", { text }))))));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
  }

  function choose(i) {
    state.chosen = i;
    const card = by("chosen");
    card.hidden = i < 0;
    if (i >= 0) {
      const rows = level().variables.map((v) => {
        const held = v.values[reference][i];
        const own = others.flatMap((_, s) => {
          const x = v.values[s][i], m = v.margins[s];
          return [whole(x), signed(x - held), m && m.values[i] !== null ? `±${whole(m.values[i])}` : "–"];
        });
        return [v.label, whole(held), ...own];
      });
      const head = ["Variable", data.sources[reference], ...others.flatMap((name) => [name, "difference", "margin"])];
      card.replaceChildren(element("h3", { text: `${level().names[i]} (${level().codes[i]})` }), table("All variables", head, rows));
    }
    drawMap();
    drawScatter();
    drawTable();
  }

  function say() {
    const n = level().codes.length;
    let sum = 0, same = 0, far = -1;
    for (let i = 0; i < n; i += 1) {
      const d = Math.abs(difference(i));
      sum += d;
      if (d === 0) same += 1;
      if (far < 0 || d > Math.abs(difference(far))) far = i;
    }
    const name = others[state.source];
    by("said").textContent = `${variable().label}, ${level().words}: ${name} differs from ${data.sources[reference]} by ${decimal(sum / n)} on average; ${whole(same)} of ${whole(n)} are equal; the largest difference is ${signed(difference(far))}, in ${level().names[far]}.`;
  }

  // Summaries of the geolevel that is shown.
  const group = (name) => name.replace("not_hispanic * ", "not Hispanic, ").replace(/^hispanic/, "Hispanic").replaceAll("_", " ").replace("nhpi", "Native Hawaiian and Pacific Islander").replace("aian", "American Indian and Alaska Native").replace("sor", "some other race");

  function drawSummaries() {
    const product = data.summary.products[state.view];
    const here = (rows) => (rows || []).filter((r) => r.geolevel === level().name && r.source === others[state.source]);
    const found = [];
    const bias = here(product.bias);
    const overall = bias.filter((r) => r.size === null);
    const head = ["", "Areas", "Mean difference", "Mean absolute", "Per cent"];
    const row = (name) => (r) => [name(r), whole(r.geounits), signedDecimal(r.mean_difference), decimal(r.mean_abs_difference), signedDecimal(r.percent, 3)];
    if (overall.length > 1) found.push(table("Bias by race and origin", head, overall.map(row((r) => group(r.group)))));
    found.push(table("Bias of the total by size", head, bias.filter((r) => r.group === "total" && r.size !== null).map(row((r) => r.size))));
    const diversity = here(product.diversity);
    if (diversity.length) found.push(table("Bias of the total by diversity (quintiles of the Blau index; 1: nearly all of one group)", ["", "Areas", "Mean difference", "Mean absolute"], diversity.map((r) => [r.quintile, whole(r.geounits), signedDecimal(r.mean_difference), decimal(r.mean_abs_difference)])));
    const largest = here(product.largest_changes);
    if (largest.length) found.push(table("Largest differences of the total", ["", "Count", "Was", "Difference", "Per cent"], largest.map((r) => [r.name, whole(r.value), whole(r.reference), signed(r.difference), signedDecimal(r.percent, 2)])));
    const flips = here(product.majority_minority);
    if (flips.length) {
      found.push(table("Areas whose majority is not non-Hispanic white", ["", "Now", "Were", "Became", "Ceased"], flips.map((r) => [r.base === "total" ? "all ages" : "18 and over", whole(r.value), whole(r.reference), whole(r.became), whole(r.ceased)])));
      const named = flips[0].largest_flips;
      if (named.length) found.push(table("The largest that flipped, all ages", ["", "Population", "Share now", "Share was"], named.map((r) => [r.name, whole(r.population), `${decimal(r.percent, 1)} %`, `${decimal(r.reference_percent, 1)} %`])));
    }
    const shares = here(product.shares);
    if (shares.length) found.push(table("Shares, in percentage points", ["", "Mean difference", "Mean absolute", "Largest"], shares.map((r) => [group(r.group), signedDecimal(r.mean_difference_points), decimal(r.mean_abs_difference_points), decimal(r.largest_abs_difference_points)])));
    for (const r of here(product.empty)) found.push(table("Populated on one side only", ["", "Areas", "People"], [["empty made populated", whole(r.empty_made_populated), whole(r.in_them)], ["populated made empty", whole(r.populated_made_empty), whole(r.were_in_them)]]));
    for (const r of here(product.ranks)) found.push(table("Ranks by size", ["", ""], [["rank correlation", decimal(r.rank_correlation, 6)], [`of the ${r.largest} largest, stay among them`, whole(r.stay_among_largest)]]));
    for (const r of here(product.urban_rural)) found.push(table("Urban and rural", ["", "Count", "Was", "Difference"], r.rows.map((e) => [e.kind, whole(e.value), whole(e.reference), signed(e.value - e.reference)])));
    for (const r of here(product.districts)) {
      found.push(table("Deviation of districts from equal population", ["", "Now", "Was"], [["range", `${decimal(r.range_percent, 3)} %`, `${decimal(r.reference_range_percent, 3)} %`], ...r.rows.map((d) => [d.name, `${signedDecimal(d.deviation_percent, 3)} %`, `${signedDecimal(d.reference_deviation_percent, 3)} %`])]));
    }
    by("summary-level").textContent = `${product.product}, ${level().words}: ${others[state.source]} compared with ${data.sources[reference]}. The whole population, not only the variable chosen above.`;
    by("tables").replaceChildren(...found);
  }

  function redraw(moved) {
    fillControls();
    shown = SHOWS[state.show];
    if (moved) { state.chosen = -1; state.rows = FIRST; by("chosen").hidden = true; }
    makeClasses();
    makePaths();
    if (moved && drawing().width) fit();
    makeOrder();
    drawMap();
    drawScatter();
    drawTable();
    drawSummaries();
    say();
  }

  for (const name of ["view", "level", "variable", "source", "show"]) {
    by(name).addEventListener("change", (event) => {
      state[name] = name === "show" ? event.target.value : Number(event.target.value);
      redraw(name === "view" || name === "level");
    });
  }
  by("controls").addEventListener("submit", (event) => event.preventDefault());
  by("search").addEventListener("input", (event) => { state.find = event.target.value; state.rows = FIRST; makeOrder(); drawTable(); });
  by("search").addEventListener("keydown", (event) => { if (event.key === "Enter" && order.length) choose(order[0]); });
  by("more").addEventListener("click", () => { state.rows += 4 * FIRST; drawTable(); });
  by("zoom").addEventListener("click", (event) => { if (event.target.dataset.zoom) zoom(Number(event.target.dataset.zoom)); });

  const map = by("map");
  let drag = null;
  const place = (event) => { const box = event.currentTarget.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  function hover(event, i) {
    const box = by("hover");
    box.hidden = i < 0;
    if (i < 0) return;
    box.textContent = `${level().names[i]}: ${signed(difference(i))} (${whole(value(i))}, was ${whole(base(i))}${margin(i) === null ? "" : `, margin ±${whole(margin(i))}`})`;
    const [x, y] = place(event);
    box.style.left = `${Math.max(0, Math.min(x + 12, map.clientWidth - box.offsetWidth - 4))}px`;
    box.style.top = `${Math.max(0, y - box.offsetHeight - 10)}px`;
  }
  map.addEventListener("pointerdown", (event) => { drag = { at: place(event), moved: false }; });
  map.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (drag && event.buttons) {
      const [dx, dy] = [x - drag.at[0], y - drag.at[1]];
      if (drag.moved || Math.hypot(dx, dy) > 4) {
        camera.x += dx; camera.y += dy;
        drag = { at: [x, y], moved: true };
        drawMap();
      }
      return;
    }
    hover(event, geounitAt(x, y));
  });
  map.addEventListener("pointerleave", () => { by("hover").hidden = true; drag = null; });
  map.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) { const i = geounitAt(...place(event)); if (i >= 0) choose(i); }
    drag = null;
  });
  map.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, ...place(event));
  }, { passive: false });
  map.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") zoom(0);
    else if (steps[event.key]) { camera.x += steps[event.key][0]; camera.y += steps[event.key][1]; drawMap(); }
    else return;
    event.preventDefault();
  });
  by("scatter").addEventListener("pointerup", (event) => { const i = dotAt(...place(event)); if (i >= 0) choose(i); });

  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { if (drawing().width) fit(); drawMap(); drawScatter(); }); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawMap(); drawScatter(); });
  state.level = Math.max(0, view().levels.findIndex((l) => l.name === "cousub" || l.name === "tract"));
  state.sort = "absolute";
  redraw(true);
})();
