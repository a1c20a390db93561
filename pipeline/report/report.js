"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 20;
  const FOLDED = 240; // characters: a longer observation is folded
  const MOST_CELLS = 4e6; // of a diff's table: larger texts are compared line by line

  // Characters that a reader does not see, or that reorder others, become escapes, as in shown.py.
  const escaped = (c) => {
    const code = c.codePointAt(0).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
  };
  const visible = (text) => String(text).replace(/(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, escaped);

  // Text from a model only ever becomes text nodes: nothing in it is read as markup.
  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined && text !== null) node.textContent = visible(text);
    return node;
  };
  const brief = (x) => (x === null || x === undefined ? "–" : String(+x.toPrecision(4)));

  // Curves

  const nearest = (xs, x) => {
    let best = 0;
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
    return best;
  };

  for (const chart of data.charts) {
    const plot = document.querySelector(`.plot[data-chart="${CSS.escape(chart.name)}"]`);
    const [left, top, right, bottom] = chart.box;
    const cursor = make("div", "cursor"), tip = make("div", "tip");
    let at = -1; // the point that is shown
    tip.setAttribute("role", "status");
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `${plot.querySelector("svg").getAttribute("aria-label")}: arrow keys read its values`);
    cursor.hidden = tip.hidden = true;
    plot.append(cursor, tip);
    const hide = () => { at = -1; cursor.hidden = tip.hidden = true; };
    const show = (i) => {
      at = i;
      const frame = plot.getBoundingClientRect();
      const share = (chart.x[i] - chart.x_limits[0]) / (chart.x_limits[1] - chart.x_limits[0]);
      const x = (left + share * (right - left)) * frame.width;
      cursor.style.left = `${x}px`;
      cursor.style.top = `${top * frame.height}px`;
      cursor.style.height = `${(bottom - top) * frame.height}px`;
      tip.replaceChildren(make("b", "", chart.ticks ? chart.ticks[i] : `${chart.x_label} ${brief(chart.x[i])}`));
      for (const series of chart.series) {
        const line = make("div");
        const key = make("span", "key");
        key.style.background = `var(--series-${(series.color % 8) + 1})`;
        const ends = series.low && series.low[i] !== null ? ` [${brief(series.low[i])}, ${brief(series.high[i])}]` : "";
        line.append(key, visible(`${series.label} ${brief(series.y[i])}${ends}`));
        tip.append(line);
      }
      cursor.hidden = tip.hidden = false;
      const room = frame.width - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, x > frame.width / 2 ? x - tip.offsetWidth - 8 : x + 8))}px`;
      tip.style.top = `${top * frame.height + 4}px`;
    };
    const point = (event) => {
      const frame = plot.getBoundingClientRect();
      const share = ((event.clientX - frame.left) / frame.width - left) / (right - left);
      if (share < -0.05 || share > 1.05) return hide();
      show(nearest(chart.x, chart.x_limits[0] + share * (chart.x_limits[1] - chart.x_limits[0])));
    };
    const last = chart.x.length - 1;
    const keys = {
      ArrowLeft: () => show(at < 0 ? last : Math.max(0, at - 1)),
      ArrowRight: () => show(Math.min(last, at + 1)),
      Home: () => show(0),
      End: () => show(last),
      Escape: hide,
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  // Sampled answers

  const samples = []; // the newest first
  for (const group of data.groups.reverse()) for (const one of group.samples) samples.push({ ...group, ...one });
  const callText = (call) => `${call.name}(${Object.entries(call.arguments).map(([k, v]) => `${k}: ${JSON.stringify(v)}`).join(", ")})`;
  const messageText = (m) => [m.text, ...(m.calls ?? []).map(callText)].filter(Boolean).join("\n");
  const whole = (s) => (s.messages ? s.messages.map((m) => `${m.role}: ${messageText(m)}`).join("\n") : s.response);
  for (const s of samples) {
    s.haystack = `${s.prompt_id}\n${s.prompt}\n${whole(s)}\n${s.reason ?? ""}`.toLowerCase();
    s.turns = s.messages ? s.messages.filter((m) => m.role === "assistant").length : 1;
    s.tools = new Set((s.messages ?? []).flatMap((m) => (m.calls ?? []).map((c) => c.name)));
  }
  const byPrompt = new Map();
  for (const s of samples) {
    const key = `${s.domain}\n${s.prompt_id}`;
    if (!byPrompt.has(key)) byPrompt.set(key, []);
    byPrompt.get(key).push(s);
  }

  const form = document.getElementById("filter"), list = document.getElementById("list");
  const fill = (name, values) => {
    const select = form.elements[name];
    select.append(new Option("all", ""));
    for (const value of new Set(values)) select.append(new Option(visible(value), value));
  };
  fill("stage", samples.map((s) => s.stage));
  fill("domain", samples.map((s) => s.domain).sort());
  fill("verdict", samples.map((s) => s.verdict).sort());

  fill("ending", samples.map((s) => s.ending).filter(Boolean).sort());
  fill("tool", samples.flatMap((s) => [...s.tools]).sort());
  if (samples.some((s) => s.messages)) for (const field of form.querySelectorAll(".of-episodes")) field.hidden = false;

  let shown = samples, page = 0;
  const bound = (name, missing) => (form.elements[name].value === "" ? missing : Number(form.elements[name].value));

  const filter = () => {
    const { stage, domain, verdict, ending, tool } = Object.fromEntries(new FormData(form));
    const text = form.elements.text.value.toLowerCase();
    const rewards = [bound("reward_from", -Infinity), bound("reward_to", Infinity)];
    const steps = [bound("step_from", -Infinity), bound("step_to", Infinity)];
    const turns = [bound("turns_from", -Infinity), bound("turns_to", Infinity)];
    const anyReward = rewards[0] === -Infinity && rewards[1] === Infinity;
    shown = samples.filter((s) =>
      (!stage || s.stage === stage) && (!domain || s.domain === domain) && (!verdict || s.verdict === verdict) &&
      (anyReward || (s.reward !== null && s.reward >= rewards[0] && s.reward <= rewards[1])) &&
      s.step >= steps[0] && s.step <= steps[1] && s.turns >= turns[0] && s.turns <= turns[1] &&
      (!ending || s.ending === ending) && (!tool || s.tools.has(tool)) && (!text || s.haystack.includes(text)));
    page = 0;
    render();
  };

  const again = (s) => (s.roll_backs ? `, after roll-back ${s.roll_backs}` : "");
  const where = (s) => `${s.stage}, step ${s.step}${again(s)}, sample ${s.sample}`;

  const card = (s) => {
    const node = make("article", "answer"), head = make("div", "answer-head");
    head.append(make("span", `verdict ${s.verdict === "right" || s.verdict === "wrong" ? s.verdict : ""}`, s.verdict.replace("_", " ")));
    head.append(make("span", "", `reward ${brief(s.reward)}`), make("span", "", s.domain), make("span", "", where(s)));
    head.append(make("span", "", `${s.length} tokens${s.finish_reason === "length" ? ", cut at the limit" : ""}`));
    head.append(make("span", "", s.prompt_id));
    if (s.messages) head.append(make("span", "", `${s.turns} turns, ended: ${s.ending}${s.rows > 1 ? `, ${s.rows} rows` : ""}`));
    node.append(head);
    const reason = make("p", "reason", s.reason || "no reason given");
    if (s.extracted !== null) reason.append(make("span", "note", ` · read as ${s.extracted}`));
    node.append(reason);
    if (s.messages) node.append(conversation(s));
    else node.append(make("pre", "prompt", s.prompt), make("pre", "response", s.response));
    const others = byPrompt.get(`${s.domain}\n${s.prompt_id}`).filter((o) => o !== s);
    if (others.length) node.append(comparer(s, others));
    return node;
  };

  // The trajectory of an episode: the policy's turns in full, long observations folded.
  const conversation = (s) => {
    const list = make("ol", "conversation");
    let turn = 0;
    for (const m of s.messages) {
      const own = m.role === "assistant", item = make("li", own ? "own" : "other"), line = make("p", "note");
      line.append(make("b", "", own ? `turn ${(turn += 1)}` : m.name ? `${m.role} ${m.name}` : m.role));
      const notes = [];
      if (own && m.tokens !== undefined) notes.push(`${m.tokens} tokens${m.finish_reason === "length" ? ", cut" : ""}`);
      if (m.reward !== undefined) notes.push(`reward ${brief(m.reward)}`);
      if (m.version !== undefined) notes.push(`weights ${m.version}`);
      if (notes.length) line.append(` · ${notes.join(" · ")}`);
      item.append(line);
      if (m.text || !m.calls) {
        const text = make("pre", own ? "response" : "prompt", m.text);
        if (own || m.text.length <= FOLDED) item.append(text);
        else {
          const fold = make("details"), summary = make("summary", "note", `${m.text.length} characters`);
          fold.append(summary, text);
          item.append(fold);
        }
      }
      for (const call of m.calls ?? []) item.append(make("pre", "call", callText(call)));
      list.append(item);
    }
    return list;
  };

  const comparer = (s, others) => {
    const line = make("label", "compare", "Compare with "), select = make("select");
    select.append(new Option(`one of ${others.length} others to this prompt`, ""));
    others.forEach((o, i) => select.append(new Option(visible(`${where(o)}: ${o.verdict.replace("_", " ")}`), i)));
    line.append(select);
    const box = make("div");
    box.append(line);
    select.addEventListener("change", () => {
      box.querySelector("pre")?.remove();
      box.querySelector(".legend")?.remove();
      if (select.value === "") return;
      const legend = make("p", "note legend");
      legend.append(make("del", "", "only in this answer"), " ", make("ins", "", "only in the other"));
      box.append(legend, drawDiff(whole(s), whole(others[Number(select.value)])));
    });
    return box;
  };

  const drawDiff = (before, after) => {
    const pre = make("pre", "diff");
    for (const [kind, text] of diff(before, after)) {
      if (kind === 0) pre.append(visible(text));
      else pre.append(make(kind < 0 ? "del" : "ins", "", text));
    }
    return pre;
  };

  // The longest common subsequence of words; [-1 | 0 | 1, text] for gone, common and new.
  const diff = (before, after) => {
    const split = (text, by) => text.match(by) ?? [];
    let a = split(before, /\s+|\w+|[^\w\s]/gu), b = split(after, /\s+|\w+|[^\w\s]/gu);
    if (a.length * b.length > MOST_CELLS) [a, b] = [split(before, /[^\n]*\n|[^\n]+/g), split(after, /[^\n]*\n|[^\n]+/g)];
    const width = b.length + 1, table = new Uint32Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        table[i * width + j] = a[i] === b[j]
          ? table[(i + 1) * width + j + 1] + 1
          : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
      }
    }
    const out = [];
    const push = (kind, text) => {
      if (out.length && out[out.length - 1][0] === kind) out[out.length - 1][1] += text;
      else out.push([kind, text]);
    };
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { push(0, a[i]); i++; j++; }
      else if (i < a.length && (j === b.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) push(-1, a[i++]);
      else push(1, b[j++]);
    }
    return out;
  };

  const render = () => {
    const pages = Math.max(1, Math.ceil(shown.length / PAGE));
    list.replaceChildren(...shown.slice(page * PAGE, (page + 1) * PAGE).map(card));
    document.getElementById("count").textContent = `${shown.length} of ${samples.length} answers match.`;
    document.getElementById("page").textContent = `${page + 1} of ${pages}`;
    document.getElementById("previous").disabled = page === 0;
    document.getElementById("next").disabled = page + 1 >= pages;
  };
  const turn = (by) => { page += by; render(); document.getElementById("samples").scrollIntoView(); };
  document.getElementById("previous").addEventListener("click", () => turn(-1));
  document.getElementById("next").addEventListener("click", () => turn(1));
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  render();
})();
