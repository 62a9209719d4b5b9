// Clips to listen to and to correct. A page of them is drawn at a time; what is decided is in `edits`, by the clip's place in `rows`.
{
  const SHOWN = 50;
  const find = (id) => document.getElementById(id);
  const rows = JSON.parse(find("data").textContent);
  const edits = rows.map((row) => ({ text: row.corrected ?? row.text, keep: row.keep }));
  const one = (text) => text.replace(/\s+/g, " ").trim();
  const wording = (i) => one(edits[i].text) || rows[i].text;
  const rewritten = (i) => wording(i) !== one(rows[i].text);
  const touched = (i) => edits[i].keep !== null || rewritten(i);
  // A line of the file is a clip.
  const fixed = (row) => row.link === null || /[\r\n]/.test(row.name);

  const make = (tag, set = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), set);
    made.append(...inside);
    return made;
  };
  const both = (english, chinese) => {
    const made = document.createDocumentFragment();
    made.append(make("span", { lang: "en", textContent: english }), make("span", { lang: "zh", textContent: chinese }));
    return made;
  };

  // What was decided and not saved outlives the tab, until the page is written anew.
  const key = "corrections:" + location.pathname;
  const written = document.body.dataset.written;
  let unsaved = false, forgets = false;
  const remember = () => {
    const of = rows.flatMap((row, i) => (touched(i) ? [[row.name, edits[i].text, edits[i].keep]] : []));
    try { localStorage.setItem(key, JSON.stringify({ written, of })); } catch { forgets = true; }
  };
  try {
    const kept = JSON.parse(localStorage.getItem(key));
    if (kept?.written === written) {
      const places = new Map(rows.map((row, i) => [row.name, i]));
      rows.forEach((row, i) => { edits[i] = { text: row.text, keep: null }; });
      for (const [name, text, keep] of kept.of) if (places.has(name)) edits[places.get(name)] = { text, keep };
      unsaved = true;
    }
  } catch { /* nothing is kept */ }

  let shown = [], page = 0, current = 0, cards = [];
  const kinds = new Map();
  for (const row of rows) for (const kind of new Set(row.issues.map((issue) => issue.kind))) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  const filters = [
    ["all", "all clips", "全部片段", () => true],
    ["doubted", "with something odd", "有疑问的", (i) => rows[i].issues.length > 0],
    ["open", "odd and not decided", "有疑问且未处理的", (i) => rows[i].issues.length > 0 && !touched(i)],
    ["touched", "corrected, kept or dropped", "已修改、保留或剔除的", touched],
    ["dropped", "dropped", "已剔除的", (i) => edits[i].keep === false],
    ...[...kinds].map(([kind, n]) => [kind, `${kind} (${n})`, `${kind} (${n})`, (i) => rows[i].issues.some((issue) => issue.kind === kind)]),
  ];
  const name = () => {
    const at = Math.max(0, find("filter").selectedIndex);
    const options = filters.map(([value, english, chinese]) => new Option(root.lang === "zh" ? chinese : english, value));
    find("filter").replaceChildren(...options);
    find("filter").selectedIndex = at;
    find("search").placeholder = root.lang === "zh" ? "名称或文本" : "name or text";
  };

  const count = () => {
    const done = rows.filter((_, i) => touched(i)).length;
    const dropped = edits.filter((edit) => edit.keep === false).length;
    find("count").replaceChildren(both(`${done} of ${rows.length} decided, ${dropped} dropped`, `共 ${rows.length} 个，已处理 ${done} 个，剔除 ${dropped} 个`));
    find("save").classList.toggle("unsaved", unsaved);
  };
  let timer;
  const decide = (i, change) => {
    Object.assign(edits[i], change);
    unsaved = true;
    cards.find((card) => card.at === i)?.refresh();
    count();
    clearTimeout(timer);
    timer = setTimeout(remember, 300);
  };

  // What is no sound says so in its player.
  const play = (sound) => sound.play().catch(() => {});
  const wave = (outline, sound) => {
    const space = "http://www.w3.org/2000/svg";
    const [svg, path] = [document.createElementNS(space, "svg"), document.createElementNS(space, "path")];
    const bars = [...atob(outline)].map((c, x) => [x + 0.5, Math.max(1, (c.charCodeAt(0) / 255) * 48)]);
    path.setAttribute("d", bars.map(([x, y]) => `M${x} ${(50 - y).toFixed(1)}V${(50 + y).toFixed(1)}`).join(""));
    svg.setAttribute("viewBox", `0 0 ${Math.max(1, bars.length)} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.append(path);
    const played = make("i", { hidden: true });
    const made = make("div", { className: "wave", ariaHidden: "true" }, svg, played);
    sound.addEventListener("timeupdate", () => {
      played.hidden = false;
      played.style.width = (100 * sound.currentTime) / (sound.duration || 1) + "%";
    });
    made.addEventListener("click", (event) => {
      const box = made.getBoundingClientRect();
      sound.currentTime = ((event.clientX - box.left) / box.width) * (sound.duration || 0);
      play(sound);
    });
    return made;
  };

  // What is heard, with the words that are not written so.
  const heard = (issue, i) => {
    const bare = (word) => word.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
    const have = new Set(rows[i].text.split(/\s+/).map(bare));
    const words = issue.proposed.split(/(\s+)/).map((word) => (bare(word) && !have.has(bare(word)) ? make("mark", { textContent: word }) : word));
    const take = make("button", { type: "button", className: "take" }, both("Take it", "采用"));
    take.addEventListener("click", () => decide(i, { text: issue.proposed }));
    return make("p", { className: "heard" }, make("span", { className: "soft small" }, both("heard:", "听到：")), make("span", {}, ...words), take);
  };

  const draw = (i) => {
    const row = rows[i];
    const card = make("article", { className: "clip", tabIndex: -1 });
    const facts = [row.seconds ? row.seconds.toFixed(1) + " s" : "", row.voice ?? "", row.place].filter(Boolean).join(" · ");
    card.append(make("h3", {}, make("span", { textContent: row.name }), make("span", { className: "soft small", textContent: facts })));
    const doubt = row.issues.length ? make("p", { className: "soft small" }, both(`doubt ${row.doubt.toFixed(2)}`, `可疑度 ${row.doubt.toFixed(2)}`)) : "";
    const made = { at: i, card, refresh: () => {} };
    if (row.link !== null) {
      const sound = make("audio", { controls: true, preload: "metadata", src: row.link });
      card.append(make("div", { className: "sound" }, wave(row.outline, sound), sound));
      made.sound = sound;
    }
    const issues = row.issues.map((issue) => make("li", {}, make("strong", { textContent: issue.kind }), ": " + issue.says));
    const odd = [doubt, make("ul", { className: "plain small" }, ...issues), ...row.issues.filter((issue) => issue.proposed).map((issue) => heard(issue, i))];
    if (fixed(row)) {
      const why = row.link === null ? both("Correct this one where it is written.", "请在原文件中修改。") : both("Its name has a line break: rename the file.", "文件名中有换行符，请重命名。");
      card.append(make("p", { textContent: row.text }), ...odd, make("p", { className: "odd" }, why));
      return made;
    }
    const text = make("textarea", { rows: 1, spellcheck: true, ariaLabel: "text · 文本" });
    text.addEventListener("input", () => decide(i, { text: text.value }));
    text.addEventListener("change", () => { if (!one(text.value)) decide(i, { text: row.text }); });
    const button = (className, english, chinese, change) => {
      const made = make("button", { type: "button", className }, both(english, chinese));
      made.addEventListener("click", () => decide(i, change()));
      return made;
    };
    const buttons = [
      button("keep", "Keep", "保留", () => ({ keep: edits[i].keep === true ? null : true })),
      button("drop", "Drop", "剔除", () => ({ keep: edits[i].keep === false ? null : false })),
      button("undo", "As it was", "还原", () => ({ text: row.text, keep: null })),
    ];
    card.append(text, ...odd, make("div", { className: "verdict" }, ...buttons));
    made.refresh = () => {
      // Not while it is typed: the cursor would jump.
      if (text.value !== edits[i].text) text.value = edits[i].text;
      buttons[0].setAttribute("aria-pressed", edits[i].keep === true);
      buttons[1].setAttribute("aria-pressed", edits[i].keep === false);
      buttons[2].disabled = !touched(i);
      card.classList.toggle("kept", edits[i].keep === true || (edits[i].keep === null && touched(i)));
      card.classList.toggle("dropped", edits[i].keep === false);
    };
    card.addEventListener("focusin", () => select(cards.indexOf(made)));
    made.refresh();
    return made;
  };

  const select = (at) => {
    current = at;
    cards.forEach(({ card }, i) => card.classList.toggle("current", i === at));
  };
  const turn = (to) => {
    const last = Math.max(0, Math.ceil(shown.length / SHOWN) - 1);
    page = Math.min(last, Math.max(0, to));
    cards = shown.slice(page * SHOWN, (page + 1) * SHOWN).map(draw);
    const none = make("p", { className: "empty" }, both("No clip is like this.", "没有符合条件的片段。"));
    find("clips").replaceChildren(...(cards.length ? cards.map(({ card }) => card) : [none]));
    const [from, to_] = [page * SHOWN + 1, Math.min(shown.length, (page + 1) * SHOWN)];
    find("place").replaceChildren(both(`${shown.length ? from : 0} to ${to_} of ${shown.length}`, `第 ${shown.length ? from : 0} 至 ${to_} 个，共 ${shown.length} 个`));
    [find("before").disabled, find("after").disabled] = [page === 0, page === last];
    select(0);
  };
  const choose = () => {
    const passes = filters[Math.max(0, find("filter").selectedIndex)][3];
    const words = find("search").value.toLowerCase();
    const has = (i) => !words || rows[i].name.toLowerCase().includes(words) || wording(i).toLowerCase().includes(words);
    shown = rows.map((_, i) => i).filter((i) => passes(i) && has(i));
    turn(0);
  };
  const go = (to) => {
    if (to < 0 && page > 0) { turn(page - 1); to = cards.length - 1; }
    else if (to >= cards.length && !find("after").disabled) { turn(page + 1); to = 0; }
    const card = cards[to]?.card;
    card?.focus({ preventScroll: true });
    card?.scrollIntoView({ block: "nearest" });
    if (card) select(to);
  };

  const save = () => {
    const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const lines = rows.flatMap((row, i) => {
      if (!touched(i) || fixed(row)) return [];
      return [[quoted(row.name), rewritten(i) ? quoted(wording(i)) : "", { true: "keep", false: "drop" }[edits[i].keep] ?? ""].join("|")];
    });
    const file = new Blob([["audio_file|text|verdict", ...lines, ""].join("\n")], { type: "text/csv" });
    const link = make("a", { href: URL.createObjectURL(file), download: "corrections.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    unsaved = false;
    count();
    const folder = document.querySelectorAll("header .mono")[1].textContent;
    find("status").replaceChildren(both(`corrections.csv has ${lines.length} lines: put it into ${folder}`, `corrections.csv 共 ${lines.length} 行：请放到 ${folder}`));
  };

  const press = (i, button) => cards[i]?.card.querySelector(button)?.click();
  const keys = {
    n: () => go(current + 1),
    p: () => go(current - 1),
    " ": () => { const sound = cards[current]?.sound; if (sound?.paused) play(sound); else sound?.pause(); },
    k: () => { press(current, ".keep"); go(current + 1); },
    d: () => { press(current, ".drop"); go(current + 1); },
    e: () => cards[current]?.card.querySelector("textarea")?.focus(),
    t: () => press(current, ".take"),
    u: () => press(current, ".undo"),
    s: save,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const into = event.target instanceof Element ? event.target : document.body;
    const typed = into.closest("textarea, input, select");
    if (typed) {
      if (event.key === "Escape") { typed.blur(); go(current); }
      return;
    }
    if (event.key === " " && into.closest("audio, button, a")) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  find("filter").addEventListener("change", choose);
  find("search").addEventListener("input", choose);
  find("before").addEventListener("click", () => { turn(page - 1); scrollTo(0, 0); });
  find("after").addEventListener("click", () => { turn(page + 1); scrollTo(0, 0); });
  find("save").addEventListener("click", save);
  document.querySelector(".language").addEventListener("click", name);
  addEventListener("beforeunload", (event) => { if (unsaved && forgets) event.preventDefault(); });
  name();
  choose();
  count();
}
