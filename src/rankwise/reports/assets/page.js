// Draws the charts of a page, highlights the selected layer in all of them, sorts and filters
// tables, follows the reader's colour scheme, and asks the server for updates.
(() => {
  "use strict";
  const content = JSON.parse(document.getElementById("content").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const COLOURS = ["ink", "faint", "near", "deep", "paper"];
  const PAUSE = 2000; // between two requests, in milliseconds
  const PATIENCE = 30000; // for an answer
  const PRECISION = 10000; // as in packing.py
  const ERRORS = 1; // Vega's log level of errors only
  const drawn = []; // { view, rows, oneLayer }: each chart and the name of its rows
  let selected = "";

  // Charts. Rows are stored once, column by column, as packing.py describes; every chart gets its
  // own copy, since Vega writes into them.
  const sum = (steps) => {
    let total = 0;
    return steps.map((step) => { total += step; return total; });
  };
  const expand = (column) => {
    if (column.runs) {
      const values = [];
      for (let i = 0; i < column.runs.length; i += 2) {
        for (let n = 0; n < column.runs[i + 1]; n += 1) values.push(column.runs[i]);
      }
      return values;
    }
    if (column.steps) return sum(column.steps);
    if (!column.logs) return column;
    const known = sum(column.logs);
    let place = 0;
    return column.gaps.flatMap((count, i) =>
      Array.from({ length: count }, () => (i % 2 ? null : Math.exp(known[place++] / PRECISION))));
  };
  const datasets = new Map(); // expanded
  const open = (name) => {
    if (!datasets.has(name)) {
      const { fields, columns } = content.datasets[name];
      datasets.set(name, { fields, columns: columns.map(expand) });
    }
    return datasets.get(name);
  };
  const makeRows = ({ fields, columns }, start, end) =>
    Array.from({ length: end - start }, (_, i) =>
      Object.fromEntries(fields.map((field, j) => [field, columns[j][start + i]])));
  // All rows, or only those of the selected layer, which come one after the other.
  const rowsOf = (name, oneLayer) => {
    const data = open(name);
    const length = data.columns.length ? data.columns[0].length : 0;
    if (!oneLayer) return makeRows(data, 0, length);
    const column = (field) => data.columns[data.fields.indexOf(field)] ?? [];
    const [values, wanted] = selected === "" ? [column("default"), true] : [column("layer"), selected];
    return makeRows(data, Math.max(values.indexOf(wanted), 0), values.lastIndexOf(wanted) + 1);
  };

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const values = COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    return Object.fromEntries(values);
  };

  const draw = async (node) => {
    const spec = content.charts[Number(node.dataset.chart)];
    const values = { ...colours(), layer: selected };
    for (const param of spec.params) {
      if (param.name in values) param.value = values[param.name];
    }
    const rows = spec.data.name;
    const { oneLayer } = spec.usermeta;
    spec.datasets = { [rows]: rowsOf(rows, oneLayer) };
    const actions = { export: true, source: false, compiled: false, editor: false };
    // ast: expressions are interpreted, so that the page may forbid code from text.
    // logLevel: Vega warns about every part of a chart that happens to have no rows.
    const options = {
      ast: true, renderer: "canvas", actions, downloadFileName: "rankwise", logLevel: ERRORS,
    };
    const { view } = await vegaEmbed(node, spec, options);
    view.addEventListener("click", (_, item) => {
      const layer = item && item.datum && item.datum.layer;
      if (typeof layer === "string") select(layer === selected ? "" : layer);
    });
    drawn.push({ view, rows, oneLayer });
  };

  const drawAll = async () => {
    for (const node of all("[data-chart]")) {
      try {
        await draw(node);
      } catch (error) {
        const note = document.createElement("p");
        note.className = "error";
        note.textContent = `This chart can't be drawn: ${error.message}`;
        node.replaceChildren(note);
        console.error(error);
      }
      await new Promise((go) => setTimeout(go)); // let the page answer in between
    }
    content.datasets = {}; // every chart has its rows by now, but for those of other layers
    const needed = new Set(drawn.filter((chart) => chart.oneLayer).map((chart) => chart.rows));
    for (const name of [...datasets.keys()]) if (!needed.has(name)) datasets.delete(name);
    document.body.dataset.ready = "";
  };

  // Colours of text and lines are signals, so nothing is redrawn; synchronously, since a browser
  // does not wait before it prints.
  const recolour = () => {
    for (const { view } of drawn) {
      for (const [name, value] of Object.entries(colours())) view.signal(name, value);
      view.run();
    }
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  let collapsed = [];
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("on-paper");
    collapsed = all("details.text:not([open])");
    collapsed.forEach((part) => { part.open = true; });
    recolour();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("on-paper");
    collapsed.forEach((part) => { part.open = false; });
    recolour();
  });

  // The selected layer.
  const select = (layer) => {
    selected = layer;
    for (const { view, rows, oneLayer } of drawn) {
      if (oneLayer) view.data(rows, rowsOf(rows, true));
      view.signal("layer", layer).runAsync();
    }
    for (const list of all("[data-layers]")) list.value = layer;
    for (const button of all("[data-reveal]")) button.disabled = layer === "";
    markRows();
    for (const row of all("tr.selected")) reveal(row);
  };
  // Opens the group that a row is in and scrolls its table, but not the page.
  const reveal = (row) => {
    if (row.hidden) return; // by the filter
    const holder = row.closest(".table");
    const line = row.dataset.in && holder.querySelector(`[data-group="${row.dataset.in}"]`);
    if (line) line.dataset.open = "";
    fold(holder);
    const frame = row.closest(".scroll");
    const [inner, outer] = [row.getBoundingClientRect(), frame.getBoundingClientRect()];
    if (inner.top < outer.top + 80 || inner.bottom > outer.bottom) {
      frame.scrollTop += inner.top - outer.top - frame.clientHeight / 3;
    }
  };
  const goTo = () => {
    const row = document.querySelector("tr.selected");
    if (!row) return;
    const field = row.closest(".table").querySelector("[data-filter]");
    if (row.hidden && field) {
      field.value = "";
      filter(row.closest(".table"));
    }
    reveal(row);
    row.closest(".scroll").scrollIntoView({ block: "center" });
    row.querySelector("button, a")?.focus({ preventScroll: true });
  };
  const markRows = () => {
    for (const row of all("tr[data-layer]")) {
      const is = row.dataset.layer === selected;
      row.classList.toggle("selected", is);
      if (is) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-select]");
    if (button) select(button.dataset.select === selected ? "" : button.dataset.select);
    const head = event.target.closest("[data-sort]");
    if (head) reverse(head.closest("th"));
    const tool = event.target.closest("[data-fold], [data-unfold], [data-regroup], [data-reveal]");
    if (!tool) return;
    if ("reveal" in tool.dataset) return goTo();
    const holder = tool.closest(".table");
    const lines = all("tr.group", holder);
    if ("fold" in tool.dataset) {
      const line = tool.closest("tr");
      setOpen(line, !("open" in line.dataset));
    } else if ("unfold" in tool.dataset) {
      const isOpen = lines.every((line) => "open" in line.dataset);
      for (const line of lines) setOpen(line, !isOpen);
    } else {
      regroup(holder.querySelector("table"));
    }
    fold(holder);
  });
  for (const list of all("[data-layers]")) {
    list.addEventListener("change", () => select(list.value));
  }

  // Tables.
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    return "value" in cell.dataset ? Number(cell.dataset.value) : text;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // "–" comes last
    return a.localeCompare(b, undefined, { numeric: true });
  };
  const sort = (table) => {
    const head = table.querySelector("th[aria-sort]");
    if (!head) return;
    const sign = head.getAttribute("aria-sort") === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const column = head.cellIndex;
    const rows = layerRows(body).map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      const mixed = typeof a !== typeof b;
      return mixed ? compare(a, b) : sign * compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };
  const reverse = (head) => {
    const before = head.getAttribute("aria-sort");
    const numeric = head.classList.contains("number");
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    for (const cell of head.parentElement.cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", before === first ? other : first);
    sort(head.closest("table"));
    fold(head.closest(".table"));
  };
  // Groups of rows. They are open or closed as the reader left them; while a filter is set, those
  // with matching rows are open; a sorted table has none, since it sorts all rows.
  const layerRows = (body) => [...body.rows].filter((row) => !("group" in row.dataset));
  const setOpen = (line, isOpen) => {
    if (isOpen) line.dataset.open = "";
    else delete line.dataset.open;
  };
  const fold = (holder) => {
    const lines = all("tr.group", holder);
    if (!lines.length) return;
    const isSorted = holder.querySelector("th[aria-sort]") !== null;
    const isFiltered = (holder.querySelector("[data-filter]")?.value.trim() ?? "") !== "";
    const members = new Map(lines.map((line) => [line.dataset.group, []]));
    for (const row of all("tr[data-in]", holder)) members.get(row.dataset.in).push(row);
    for (const line of lines) {
      const rows = members.get(line.dataset.group);
      const isOpen = isSorted || isFiltered || "open" in line.dataset;
      line.hidden = isSorted || rows.every((row) => row.hidden);
      line.querySelector("[data-fold]").setAttribute("aria-expanded", String(isOpen));
      for (const row of rows) row.classList.toggle("folded", !isOpen);
    }
    const unfold = holder.querySelector("[data-unfold]");
    unfold.textContent =
      lines.every((line) => "open" in line.dataset) ? "Collapse all" : "Expand all";
    unfold.disabled = isSorted || isFiltered;
    holder.querySelector("[data-regroup]").hidden = !isSorted;
  };
  const regroup = (table) => {
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    table.tBodies[0].append(...order.get(table));
  };
  const order = new Map(all("table:has(tr.group)").map((table) => [table, [...table.tBodies[0].rows]]));
  const filter = (holder) => {
    const field = holder.querySelector("[data-filter]");
    if (!field) return;
    const wanted = field.value.trim().toLowerCase();
    const rows = layerRows(holder.querySelector("tbody"));
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    const shown = rows.filter((row) => !row.hidden).length;
    holder.querySelector("[data-count]").textContent =
      wanted ? `${shown} of ${rows.length} rows` : "";
    fold(holder);
  };
  for (const field of all("[data-filter]")) {
    field.addEventListener("input", () => filter(field.closest(".table")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") event.preventDefault(); // it would send the ticked rows
    });
  }

  // Updates from the server that this page came from.
  const append = (name, rows) => {
    for (const chart of drawn) {
      if (chart.rows !== name) continue;
      const copies = rows.map((row) => ({ ...row }));
      chart.view.insert(name, copies).runAsync();
    }
  };
  // The focused element of a table keeps the focus when the rows are replaced.
  const handle = (node) => node.value || node.getAttribute("href") || node.dataset.select;
  const withFocus = (body, change) => {
    const focused = body.contains(document.activeElement) ? handle(document.activeElement) : null;
    change();
    const same = focused && all("input, a, button", body).find((node) => handle(node) === focused);
    if (same) same.focus({ preventScroll: true });
  };
  const replaceRows = (name, html) => {
    for (const table of all("[data-table]")) {
      if (table.dataset.table !== name) continue;
      const body = table.tBodies[0];
      const ticked = new Set(all("input:checked", body).map((box) => box.value));
      withFocus(body, () => {
        body.innerHTML = html; // rendered and escaped by the template of the page
        for (const box of all("input[type=checkbox]", body)) box.checked = ticked.has(box.value);
        sort(table);
      });
      filter(table.closest(".table"));
      markRows();
    }
  };
  const texts = (parent, tag, values) => {
    parent.replaceChildren(...values.map((text) => {
      const node = document.createElement(tag);
      node.textContent = text;
      return node;
    }));
  };
  const apply = (update) => {
    content.updates = update.updates ?? content.updates; // first: no row is added twice
    if (update.reload) return location.reload();
    for (const [name, rows] of Object.entries(update.datasets ?? {})) append(name, rows);
    for (const [name, html] of Object.entries(update.tables ?? {})) replaceRows(name, html);
    if (update.summary) texts(document.querySelector(".summary"), "p", update.summary);
    if (update.facts) {
      const parts = update.facts.map(([label, value, remark]) => {
        const tile = document.createElement("div");
        texts(tile, "dd", [value, remark ?? ""]);
        tile.lastChild.className = "remark";
        const term = document.createElement("dt");
        term.textContent = label;
        tile.prepend(term);
        return tile;
      });
      document.querySelector(".facts").replaceChildren(...parts);
    }
  };
  const status = document.querySelector(".live");
  const show = (text) => {
    status.hidden = false;
    if (status.textContent !== text) status.textContent = text; // otherwise it would be read out again
  };
  const ENDS = {
    401: "The token is no longer valid: open the address that the server printed.",
    404: "This run no longer exists on the server; the page shows its last state.",
  };
  const ask = async () => {
    let update = null;
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      const answer = await fetch(content.updates, { cache: "no-store", signal });
      if (answer.status in ENDS) return show(ENDS[answer.status]);
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      update = await answer.json();
    } catch (error) {
      show(`The server can't be reached (${error.message}); trying again.`);
    }
    if (update) {
      apply(update);
      show(content.updates ? "Live: updates automatically." : "Finished: no more updates.");
    }
    if (content.updates) setTimeout(ask, PAUSE);
  };

  drawAll().then(() => { if (content.updates) ask(); });
})();
