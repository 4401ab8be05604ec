// Broken schedules as puzzles: the lines of every device can be moved, by mouse, touch or the keys,
// and changes be chosen. What hangs in a cycle is judged here in any order; of the others docs/puzzles.py
// has judged what each change makes.

const SOLVED = "primepar-solved";

class Gallery {
  /** @param {HTMLElement} host @param {Puzzle[]} puzzles */
  constructor(host, puzzles) {
    this.puzzles = puzzles;
    this.solved = new Set(this.stored());
    this.select = /** @type {HTMLSelectElement} */ (html("select", { id: "puzzle" }));
    this.story = html("p", { class: "story" });
    this.board = html("div", { class: "board scroll" });
    this.verdict = html("p", { class: "verdict", role: "status" });
    this.help = html("p", { class: "hint", role: "status" });
    this.changes = /** @type {HTMLSelectElement} */ (html("select", { id: "change" }));
    this.change = html("div", { class: "field" }, html("label", { for: "change" }, "change"), this.changes);
    const buttons = [["Hint", () => (this.help.textContent = this.puzzle.hint)], ["Show the answer", () => this.set(this.puzzle.answer)],
      ["Begin again", () => this.show()]].map(([label, press]) => {
      const button = html("button", { type: "button", class: "quiet" }, /** @type {string} */ (label));
      button.addEventListener("click", /** @type {() => void} */ (press));
      return button;
    });
    this.select.addEventListener("change", () => this.show());
    this.changes.addEventListener("change", () => this.set((this.puzzle.boards ?? [])[Number(this.changes.value)].orders));
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
      html("p", { class: "hint" }, "Each of these is wrong, and each was published or met in practice. Move lines, or choose a change, until nothing is wrong. Drag a line up or down, or focus it and press Alt with an arrow."),
      html("div", { class: "field" }, html("label", { for: "puzzle" }, "puzzle"), this.select, this.count = html("span", { class: "hint" })),
      this.story, this.board, this.verdict, this.change, html("div", { class: "choices" }, ...buttons), this.help);
    this.list();
    this.show();
  }

  /** @returns {string[]} */
  stored() {
    try {
      return JSON.parse(localStorage.getItem(SOLVED) ?? "[]");
    } catch {
      return []; // a page from a file may have no storage
    }
  }

  get puzzle() { return this.puzzles[Math.max(0, this.select.selectedIndex)]; }

  /** Lists the puzzles with those that are solved, which the browser keeps. */
  list() {
    const place = Math.max(0, this.select.selectedIndex);
    this.select.replaceChildren(...this.puzzles.map((puzzle, i) =>
      html("option", { value: puzzle.name }, `${this.solved.has(puzzle.name) ? "\u2713" : i + 1}  ${puzzle.title}`)));
    this.select.selectedIndex = place;
    this.count.textContent = `${this.puzzles.filter((puzzle) => this.solved.has(puzzle.name)).length} of ${this.puzzles.length} solved`;
    try {
      localStorage.setItem(SOLVED, JSON.stringify([...this.solved]));
    } catch {
      // nothing is kept then
    }
  }

  show() {
    this.story.textContent = this.puzzle.story;
    this.help.textContent = "";
    const { boards, ranks } = this.puzzle;
    const changes = (boards ?? []).map(({ change }, i) => ({ change, i })).filter(({ change }) => change).sort((a, b) => (a.change < b.change ? -1 : 1));
    this.change.hidden = !changes.length;
    this.changes.replaceChildren(html("option", { value: 0 }, "as it was found"), ...changes.map(({ change, i }) => html("option", { value: i }, change)));
    this.set(boards?.[0].orders ?? ranks.map((lines) => lines.map((_, line) => line)));
  }

  /** @param {number[][]} orders */
  set(orders) {
    this.orders = orders.map((order) => [...order]);
    this.isUntouched = !this.puzzle.boards && orders.every((order) => order.every((line, place) => line === place));
    this.draw();
  }

  /** Moves a line of a device to another place.
   * @param {number} rank
   * @param {number} from
   * @param {number} to */
  move(rank, from, to) {
    const order = this.orders?.[rank];
    if (!order || to < 0 || to >= order.length || to === from) return;
    order.splice(to, 0, ...order.splice(from, 1));
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
    const { puzzle, orders = [] } = this;
    if (!puzzle.boards) return judgeOrders(puzzle, orders);
    const texts = (/** @type {number[][]} */ now) => JSON.stringify(now.map((order, rank) => order.map((line) => puzzle.ranks[rank][line].text)));
    return puzzle.boards.find((board) => texts(board.orders) === texts(orders)) ??
      { kind: "refuted", places: [], text: "Not judged on this page, which knows each single change, and the answer on some devices or on all: undo one." };
  }

  draw() {
    const { puzzle, orders } = this, judged = this.judged();
    const wrong = new Set(judged.places.map(([rank, line]) => `${rank} ${line}`));
    this.board.replaceChildren(...(orders ?? []).map((order, rank) => html("div", { class: "rank" }, html("h3", {}, `device ${rank}`),
      html("ol", {}, ...order.map((line, place) => this.lineOf(rank, line, place, wrong.has(`${rank} ${line}`)))))));
    this.verdict.className = `verdict ${judged.kind === "ends" ? "right" : "wrong"}`;
    this.verdict.textContent = judged.text;
    if (judged.kind === "ends" && !this.isUntouched && !this.solved.has(puzzle.name)) {
      this.solved.add(puzzle.name);
      this.list();
    }
    if (judged.kind === "cycle") this.drawCycle(judged.places);
  }

  /** @param {number} rank
   * @param {number} line
   * @param {number} place
   * @param {boolean} isWrong */
  lineOf(rank, line, place, isWrong) {
    const { text } = this.puzzle.ranks[rank][line];
    const item = html("li", { tabindex: 0, class: isWrong ? "wrong" : "", "data-line": line }, text);
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
      const item = /** @type {Element} */ (this.lineAt(rank, (this.orders ?? [])[rank].indexOf(line)));
      const box = item.getBoundingClientRect();
      return { left: box.left - host.left + scrollLeft, right: box.right - host.left + scrollLeft, y: box.top - host.top + box.height / 2 };
    });
    const arrows = boxes.map((box, i) => {
      const next = boxes[(i + 1) % boxes.length], isRight = next.left > box.left, lift = isRight ? -5 : 5;
      const from = { x: isRight ? box.right : box.left, y: box.y + lift }, to = { x: isRight ? next.left : next.right, y: next.y + lift };
      const reach = Math.max(18, Math.abs(to.x - from.x) / 3) * (isRight ? 1 : -1), sag = Math.abs(to.x - from.x) > 140 ? -42 : 0;
      const path = `M${from.x} ${from.y}C${from.x + reach} ${from.y + sag} ${to.x - reach} ${to.y + sag} ${to.x} ${to.y}`;
      const head = `M${to.x} ${to.y}l${isRight ? -7 : 7} -4v8z`;
      return svg("g", {}, svg("path", { d: path, class: "waits" }), svg("path", { d: head, class: "head" }));
    });
    this.board.append(svg("svg", { class: "cycle", width: this.board.scrollWidth, height: this.board.scrollHeight, "aria-hidden": "true" }, ...arrows));
  }
}
