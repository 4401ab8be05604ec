// Broken schedules as puzzles: the lines of every device are moved, taken out or put in, by mouse, touch
// or the keys. What hangs in a cycle is judged here; of the others docs/puzzles.py has judged single
// changes, and the library's own judge, in the worker of the prover, judges any other.

const SOLVED = "primepar-solved", RULE = -1; // the line below which others are left out

/** What the browser keeps, which is nothing where a page from a file has no storage. @param {string} [solved] */
function stored(solved) {
  try {
    if (solved) localStorage.setItem(SOLVED, solved);
    return localStorage.getItem(SOLVED);
  } catch {
    return null;
  }
}

class Gallery {
  /** @param {HTMLElement} host @param {Puzzle[]} puzzles @param {Prover} prover @param {(target: string) => void} open */
  constructor(host, puzzles, prover, open) {
    this.puzzles = puzzles;
    this.prover = prover;
    /** @type {Map<string, Judgement>} */
    this.answers = new Map();
    this.solved = new Set(/** @type {string[]} */ (JSON.parse(stored() ?? "[]")));
    this.select = /** @type {HTMLSelectElement} */ (html("select", { id: "puzzle" }));
    this.story = html("p", { class: "story" });
    this.board = html("div", { class: "board scroll" });
    this.verdict = html("p", { class: "verdict", role: "status" });
    this.help = html("p", { class: "hint", role: "status" });
    const [judge, map, ...buttons] = [["Judge it here", () => this.judge()], ["Edit it in the map above", () => open(this.puzzle.name)],
      ["Hint", () => (this.help.textContent = this.puzzle.hint)], ["Show the answer", () => (this.puzzle.map ? (this.help.textContent = this.puzzle.repaired ?? "") : this.set(this.puzzle.answer))],
      ["Begin again", () => this.show()]].map(([label, press]) => {
      const button = html("button", { type: "button", class: "quiet" }, /** @type {string} */ (label));
      button.addEventListener("click", /** @type {() => void} */ (press));
      return button;
    });
    this.judgeButton = judge;
    this.mapButton = map;
    this.select.addEventListener("change", () => this.show());
    this.board.addEventListener("pointerdown", (event) => (this.dragged = this.placeAt(event)));
    this.board.addEventListener("pointermove", (event) => {
      const over = this.dragged && this.placeAt(event), { rank } = this.dragged ?? {};
      for (const item of this.board.querySelectorAll("li")) item.classList.toggle("over", over?.item === item && over.rank === rank);
    });
    document.addEventListener("pointerup", (event) => {
      const from = this.dragged, to = this.placeAt(event);
      this.dragged = null;
      if (from && to?.rank === from.rank) this.move(from.rank, from.place, to.place);
    });
    host.replaceChildren(html("h2", {}, "Broken schedules"),
      html("p", { class: "hint" }, "Each of these is wrong, and each was published or met in practice. Move lines until nothing is wrong: what is below a rule is left out. Drag a line up or down, or focus it and press Alt with an arrow."),
      html("div", { class: "field" }, html("label", { for: "puzzle" }, "puzzle"), this.select, this.count = html("span", { class: "hint" })),
      this.story, this.board, this.verdict, html("div", { class: "choices" }, judge, map, ...buttons), this.help);
    this.list();
    this.show();
  }

  get puzzle() { return this.puzzles[Math.max(0, this.select.selectedIndex)]; }

  /** The lines of each device that are in its program. */
  get orders() { return (this.lists ?? []).map((list) => (list.includes(RULE) ? list.slice(0, list.indexOf(RULE)) : list)); }

  get key() { return `${this.puzzle.name} ${this.orders.join(" ")}`; }

  /** Lists the puzzles with those that are solved, which the browser keeps. */
  list() {
    const place = Math.max(0, this.select.selectedIndex);
    this.select.replaceChildren(...this.puzzles.map((puzzle, i) =>
      html("option", { value: puzzle.name }, `${this.solved.has(puzzle.name) ? "\u2713" : i + 1}  ${puzzle.title}`)));
    this.select.selectedIndex = place;
    this.count.textContent = `${this.puzzles.filter((puzzle) => this.solved.has(puzzle.name)).length} of ${this.puzzles.length} solved`;
    stored(JSON.stringify([...this.solved]));
  }

  /** @param {string} name */
  solve(name) {
    if (this.solved.has(name) || !this.puzzles.some((puzzle) => puzzle.name === name)) return;
    this.solved.add(name);
    this.list();
  }

  show() {
    this.story.textContent = this.puzzle.story;
    this.help.textContent = "";
    const { boards, ranks } = this.puzzle;
    this.set(boards?.[0].orders ?? ranks.map((lines) => lines.map((_, line) => line)));
  }

  /** @param {number[][]} orders */
  set(orders) {
    const { boards, ranks } = this.puzzle;
    this.lists = orders.map((order, rank) => (boards ? [...order, RULE, ...ranks[rank].keys()].filter((line, place, all) => all.indexOf(line) === place) : [...order]));
    this.isUntouched = true; // an answer that is shown solves nothing
    this.draw();
  }

  /** Moves a line of a device to another place.
   * @param {number} rank
   * @param {number} from
   * @param {number} to */
  move(rank, from, to) {
    const list = this.lists?.[rank];
    if (!list || to < 0 || to >= list.length || to === from || list[from] === RULE) return;
    list.splice(to, 0, ...list.splice(from, 1));
    this.isUntouched = false;
    this.draw();
    /** @type {HTMLElement | undefined} */ (this.lineAt(rank, to))?.focus();
  }

  /** @param {number} rank @param {number} place */
  lineAt(rank, place) { return this.board.querySelectorAll("ol")[rank]?.children[place]; }

  /** The line under the pointer. @param {PointerEvent} event */
  placeAt({ clientX, clientY }) {
    const item = document.elementFromPoint(clientX, clientY)?.closest("li");
    const rank = [...this.board.querySelectorAll("ol")].findIndex((list) => list === item?.parentElement);
    return item && rank >= 0 ? { item, rank, place: [.../** @type {Element} */ (item.parentElement).children].indexOf(item) } : null;
  }

  /** @returns {Judgement} */
  judged() {
    const { puzzle, orders, prover } = this;
    if (!puzzle.boards) return judgeOrders(puzzle, orders);
    const texts = (/** @type {number[][]} */ now) => JSON.stringify(now.map((order, rank) => order.map((line) => puzzle.ranks[rank][line].text)));
    const known = puzzle.boards.find((board) => texts(board.orders) === texts(orders)) ?? this.answers.get(this.key);
    if (!known) {
      return { kind: "open", places: [], text: prover.folder ? "This is more than one change, which the library has not judged beforehand."
        : "Not judged by a page from a file, which knows each single change, and the answer on some devices or on all. The page of a served site judges any." };
    }
    const places = known.places.map(([rank, place]) => /** @type {[number, number]} */ ([rank, orders[rank][place]]));
    const less = known.kind === "ends" && orders.some((order, rank) => this.isLess(rank, order));
    return less ? { kind: "refuted", text: "Nothing is wrong with what is left, but it does less: put back a line.", places } : { ...known, places };
  }

  /** Whether a device leaves out what it does in the wrong program and in the right one.
   * @param {number} rank
   * @param {number[]} order */
  isLess(rank, order) {
    const { boards, answer } = this.puzzle, [wrong, right] = [(boards ?? [])[0].orders[rank], answer[rank]];
    return order.length < Math.min(wrong.length, right.length) || wrong.some((line) => right.includes(line) && !order.includes(line));
  }

  /** Has the library's judge decide what is on the board. */
  async judge() {
    const { puzzle, orders, key } = this;
    const programs = orders.map((order, rank) => order.map((line) => puzzle.ranks[rank][line].node));
    const answer = await this.prover.ask({ program: JSON.stringify({ ...puzzle.program, programs }) }, (text) => {
      if (key === this.key) this.verdict.textContent = text;
    }).catch((error) => ({ kind: "refuted", text: `The judge did not load: ${error.message}`, places: /** @type {[number, number][]} */ ([]) }));
    this.answers.set(key, answer);
    if (key === this.key) this.draw();
  }

  draw() {
    const { puzzle, lists = [] } = this;
    [this.board.hidden, this.verdict.hidden, this.mapButton.hidden] = [Boolean(puzzle.map), Boolean(puzzle.map), !puzzle.map];
    this.judgeButton.hidden = true;
    if (puzzle.map) return this.board.replaceChildren();
    const judged = this.judged(), wrong = new Set(judged.places.map(([rank, line]) => `${rank} ${line}`));
    this.board.replaceChildren(...lists.map((list, rank) => html("div", { class: "rank" }, html("h3", {}, `device ${rank}`),
      html("ol", {}, ...list.map((line, place) => this.lineOf(rank, line, place, wrong.has(`${rank} ${line}`)))))));
    this.verdict.className = `verdict ${judged.kind === "ends" ? "right" : judged.kind === "open" ? "" : "wrong"}`;
    this.verdict.textContent = judged.text;
    this.judgeButton.hidden = judged.kind !== "open" || !this.prover.folder || this.answers.has(this.key);
    if (!this.judgeButton.hidden && this.prover.worker) this.judge();
    if (judged.kind === "ends" && !this.isUntouched) this.solve(puzzle.name);
    if (judged.kind === "cycle") this.drawCycle(judged.places);
  }

  /** @param {number} rank @param {number} line @param {number} place @param {boolean} isWrong */
  lineOf(rank, line, place, isWrong) {
    if (line === RULE) return html("li", { class: "rule" }, "left out");
    const isOut = place >= this.orders[rank].length;
    const item = html("li", { tabindex: 0, class: isOut ? "out" : isWrong ? "wrong" : "", "data-line": line }, this.puzzle.ranks[rank][line].text);
    item.addEventListener("keydown", (event) => {
      const way = { ArrowUp: -1, ArrowDown: 1 }[/** @type {KeyboardEvent} */ (event).key];
      if (way === undefined || !(/** @type {KeyboardEvent} */ (event).altKey)) return;
      event.preventDefault();
      this.move(rank, place, place + way);
    });
    return item;
  }

  /** Arrows from each line that hangs to the one that it waits for. @param {[number, number][]} places */
  drawCycle(places) {
    const host = this.board.getBoundingClientRect(), { scrollLeft } = this.board;
    const boxes = places.map(([rank, line]) => {
      const item = /** @type {Element} */ (this.lineAt(rank, this.orders[rank].indexOf(line)));
      const box = item.getBoundingClientRect();
      return { left: box.left - host.left + scrollLeft, right: box.right - host.left + scrollLeft, y: box.top - host.top + box.height / 2 };
    });
    const arrows = boxes.map((box, i) => {
      const next = boxes[(i + 1) % boxes.length], isRight = next.left > box.left, lift = isRight ? -5 : 5;
      const from = { x: isRight ? box.right : box.left, y: box.y + lift }, to = { x: isRight ? next.left : next.right, y: next.y + lift };
      const head = `M${to.x} ${to.y}l${isRight ? -7 : 7} -4v8z`;
      return svg("g", {}, svg("path", { d: curve(from, to), class: "waits" }), svg("path", { d: head, class: "head" }));
    });
    this.board.append(svg("svg", { class: "cycle", width: this.board.scrollWidth, height: this.board.scrollHeight, "aria-hidden": "true" }, ...arrows));
  }
}
