// What a page does beside being read: draws its figures, marks the chosen layer in all of them,
// sorts and filters its tables, follows the reader's colours, and asks a server for what is new.
(() => {
  "use strict";
  const content = JSON.parse(document.getElementById("content").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const COLOURS = ["ink", "faint", "near", "deep", "paper"];
  const PAUSE = 2000; // between two questions to the server, in milliseconds
  const PATIENCE = 30000; // for an answer
  const ERRORS = 1; // what Vega calls the level of errors alone
  const drawn = []; // { view, rows }: each figure and the name of the rows it shows
  let chosen = "";

  // Figures. Rows are stored once, column by column; every figure gets rows of its own, since
  // Vega writes into them.
  const rowsOf = (name) => {
    const { fields, columns } = content.datasets[name];
    return Array.from({ length: columns.length ? columns[0].length : 0 }, (_, i) =>
      Object.fromEntries(fields.map((field, j) => [field, columns[j][i]])));
  };

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const found = COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    return Object.fromEntries(found);
  };

  const draw = async (node) => {
    const spec = content.figures[Number(node.dataset.figure)];
    const values = { ...colours(), layer: chosen };
    for (const param of spec.params) {
      if (param.name in values) param.value = values[param.name];
    }
    const rows = spec.data.name;
    spec.datasets = { [rows]: rowsOf(rows) };
    const actions = { export: true, source: false, compiled: false, editor: false };
    // ast: expressions are interpreted, so that the page may forbid code from text.
    // logLevel: Vega warns of every part of a figure that happens to have no rows.
    const options = {
      ast: true, renderer: "canvas", actions, downloadFileName: "rankwise", logLevel: ERRORS,
    };
    const { view } = await vegaEmbed(node, spec, options);
    view.addEventListener("click", (_, item) => {
      const layer = item && item.datum && item.datum.layer;
      if (typeof layer === "string") choose(layer === chosen ? "" : layer);
    });
    drawn.push({ view, rows });
  };

  const drawAll = async () => {
    for (const node of all("[data-figure]")) {
      try {
        await draw(node);
      } catch (error) {
        const note = document.createElement("p");
        note.className = "error";
        note.textContent = `This figure can't be drawn: ${error.message}`;
        node.replaceChildren(note);
        console.error(error);
      }
      await new Promise((go) => setTimeout(go)); // let the page answer in between
    }
    content.datasets = {}; // every figure has its rows by now
    document.body.dataset.ready = "";
  };

  // The colours of text and lines are signals, so nothing is drawn anew; synchronously, since a
  // browser does not wait before it prints.
  const recolour = () => {
    for (const { view } of drawn) {
      for (const [name, value] of Object.entries(colours())) view.signal(name, value);
      view.run();
    }
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  let folded = [];
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("on-paper");
    folded = all("details.words:not([open])");
    folded.forEach((part) => { part.open = true; });
    recolour();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("on-paper");
    folded.forEach((part) => { part.open = false; });
    recolour();
  });

  // The chosen layer.
  const choose = (layer) => {
    chosen = layer;
    for (const { view } of drawn) view.signal("layer", layer).runAsync();
    for (const list of all("[data-layers]")) list.value = layer;
    markRows();
  };
  const markRows = () => {
    for (const row of all("tr[data-layer]")) {
      const is = row.dataset.layer === chosen;
      row.classList.toggle("chosen", is);
      if (is) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-choose]");
    if (button) choose(button.dataset.choose === chosen ? "" : button.dataset.choose);
    const head = event.target.closest("[data-sort]");
    if (head) turn(head.closest("th"));
  });
  for (const list of all("[data-layers]")) {
    list.addEventListener("change", () => choose(list.value));
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
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      const mixed = typeof a !== typeof b;
      return mixed ? compare(a, b) : sign * compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };
  const turn = (head) => {
    const before = head.getAttribute("aria-sort");
    const numeric = head.classList.contains("number");
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    for (const cell of head.parentElement.cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", before === first ? other : first);
    sort(head.closest("table"));
  };
  const filter = (holder) => {
    const field = holder.querySelector("[data-filter]");
    if (!field) return;
    const wanted = field.value.trim().toLowerCase();
    const rows = [...holder.querySelector("tbody").rows];
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    const shown = rows.filter((row) => !row.hidden).length;
    holder.querySelector("[data-count]").textContent =
      wanted ? `${shown} of ${rows.length} rows` : "";
  };
  for (const field of all("[data-filter]")) {
    field.addEventListener("input", () => filter(field.closest(".table")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") event.preventDefault(); // it would send the ticked rows
    });
  }

  // What is new, from the server that this page came from.
  const append = (name, rows) => {
    for (const one of drawn) {
      if (one.rows !== name) continue;
      const fresh = rows.map((row) => ({ ...row }));
      one.view.insert(name, fresh).runAsync();
    }
  };
  // What has the focus in a table keeps it when the rows are made anew.
  const handle = (node) => node.value || node.getAttribute("href") || node.dataset.choose;
  const withFocus = (body, change) => {
    const held = body.contains(document.activeElement) ? handle(document.activeElement) : null;
    change();
    const same = held && all("input, a, button", body).find((node) => handle(node) === held);
    if (same) same.focus({ preventScroll: true });
  };
  const replaceRows = (name, html) => {
    for (const table of all("[data-table]")) {
      if (table.dataset.table !== name) continue;
      const body = table.tBodies[0];
      const ticked = new Set(all("input:checked", body).map((box) => box.value));
      withFocus(body, () => {
        body.innerHTML = html; // made and escaped by the same template as the page
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
  const take = (news) => {
    content.updates = news.updates ?? content.updates; // first: no row is taken twice
    if (news.reload) return location.reload();
    for (const [name, rows] of Object.entries(news.datasets ?? {})) append(name, rows);
    for (const [name, html] of Object.entries(news.tables ?? {})) replaceRows(name, html);
    if (news.verdict) texts(document.querySelector(".verdict"), "p", news.verdict);
    if (news.facts) {
      const parts = news.facts.map(([label, value, remark]) => {
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
  const tell = (text) => {
    status.hidden = false;
    if (status.textContent !== text) status.textContent = text; // else it would be read out again
  };
  const ENDS = {
    401: "The server asks for another token: open the address that it printed.",
    404: "This is gone from the server; what is shown was the last of it.",
  };
  const ask = async () => {
    let news = null;
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      const answer = await fetch(content.updates, { cache: "no-store", signal });
      if (answer.status in ENDS) return tell(ENDS[answer.status]);
      if (!answer.ok) throw new Error(`it answers ${answer.status}`);
      news = await answer.json();
    } catch (error) {
      tell(`The server can't be reached (${error.message}); trying again.`);
    }
    if (news) {
      take(news);
      tell(content.updates ? "Live: this page is brought up to date." : "This is over: nothing more will come.");
    }
    if (content.updates) setTimeout(ask, PAUSE);
  };

  drawAll().then(() => { if (content.updates) ask(); });
})();
