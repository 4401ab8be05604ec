// The space-time view: a row for every device, a column for every tick, and the memory below.

class TimeView {
  /** @param {HTMLElement} host
   * @param {(tick: number) => void} go
   * @param {(rank: number | null, block: string | null) => void} select */
  constructor(host, go, select) {
    this.host = host;
    this.go = go;
    this.select = select;
  }

  /** @param {Scene} scene @param {Palette} palette */
  show(scene, palette) {
    this.scene = scene;
    const room = this.host.clientWidth - 40;
    const row = scene.ranks > 16 ? 13 : scene.ranks > 8 ? 20 : 30, left = 26, top = 20;
    const unit = Math.max(9, Math.min(118, room / Math.max(1, scene.end)));
    const x = (/** @type {number} */ time) => left + time * unit, y = (/** @type {number} */ rank) => top + rank * row;
    this.x = x;
    const below = top + scene.ranks * row + 14, tall = 64, width = x(scene.end) + 14, height = below + tall + 20;
    const rows = range(scene.ranks).map((rank) => svg("g", { class: "line", "data-rank": rank },
      svg("rect", { x: 0, y: y(rank), width, height: row, class: "band" }),
      svg("text", { x: 6, y: y(rank) + row / 2 + 4, class: "rank" }, scene.ranks > 16 && rank % 2 ? "" : String(rank))));
    this.rows = rows;
    const bars = scene.bars.filter((bar) => bar.end > bar.start).map((bar) => {
      const wide = (bar.end - bar.start) * unit - 2, kind = kindOf(bar.phase);
      const text = scene.isMap ? bar.cell.replace(/[A-Z]=/g, "").replaceAll(" ", "·") : bar.cell.replace(/[a-zA-Z_]+=/g, "").replaceAll(" ", "·");
      const group = svg("g", { class: `bar ${kind}`, "data-rank": bar.rank }, svg("rect", { x: x(bar.start) + 1, y: y(bar.rank) + 2, width: Math.max(2, wide), height: row - 6, rx: 3 }),
        svg("title", {}, `device ${bar.rank}, ${bar.phase} ${bar.cell}: ${bar.writes} += ${bar.reads.join(" * ")}`));
      if (row > 16 && wide > 6 * text.length + 4) group.append(svg("text", { x: x((bar.start + bar.end) / 2), y: y(bar.rank) + row / 2 + 3, "text-anchor": "middle" }, text));
      group.addEventListener("pointerenter", () => this.select(bar.rank, bar.writes));
      return group;
    });
    const half = (/** @type {number} */ rank) => y(rank) + row - 3;
    const ways = scene.flights.map((flight) => svg("path", {
      class: "message", "data-block": plain(flight.block), style: `--hue:${palette.hue(flight.block)}`,
      d: `M${x(flight.start) + 2} ${half(flight.from)}L${x(flight.end) - 1} ${half(flight.to)}`,
    }, svg("title", {}, `${flight.block}: ${flight.from} -> ${flight.to}, ${flight.bytes} bytes`)));
    const meetings = scene.meetings.flatMap((meeting) => meeting.group.map((rank) => svg("rect", {
      class: "meeting", x: x(meeting.start) + 1, y: y(rank) + row - 5, width: Math.max(2, (meeting.end - meeting.start) * unit - 2), height: 3.5, rx: 1.5,
      style: `--hue:${palette.hue(blockOf(meeting, rank))}`,
    }, svg("title", {}, `${meeting.op} over ${meeting.group.join(", ")}`))));
    this.stays = svg("g", { class: "stays" });
    this.above = svg("g");
    this.head = svg("rect", { class: "playhead", y: 0, height, width: unit });
    const most = Math.max(1, ...scene.amounts.flat().map((one) => one.held));
    this.curves = range(scene.ranks).map((rank) => svg("path", {
      class: "memory", "data-rank": rank,
      d: scene.amounts.map((now, tick) => `${tick ? "H" : "M"}${x(scene.ticks[tick])}${tick ? "V" : " "}${below + tall - (tall * now[rank].held) / most}`).join(""),
    }));
    const labels = this.phaseLabels(x);
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Space and time: ${scene.ranks} devices, ${scene.last} ticks` },
      ...rows, ...labels, this.head, this.stays, ...ways, ...bars, ...meetings, this.above, ...this.curves,
      svg("text", { class: "axis", x: left, y: below - 3 }, `bytes held, at most ${bytesText(most)} on a device`));
    picture.addEventListener("pointerdown", (event) => {
      const at = (/** @type {PointerEvent} */ (event).clientX - picture.getBoundingClientRect().left - left) / unit;
      this.go(Math.max(0, scene.ticks.findLastIndex((time) => time <= at)));
    });
    this.messages = ways;
    this.unit = unit;
    this.row = row;
    this.y = y;
    this.host.replaceChildren(picture);
  }

  /** A word above the first tick of each phase. @param {(time: number) => number} x */
  phaseLabels(x) {
    const scene = /** @type {Scene} */ (this.scene);
    /** @type {SVGElement[]} */
    const labels = [];
    let before = "", free = 0;
    scene.labels.forEach((label, tick) => {
      const word = label.split(" ")[0].replace(",", "");
      if (word === before || !scene.isMap || tick === scene.last || !PHASES.includes(word)) return;
      before = word;
      const at = Math.max(free, x(scene.ticks[tick]) + 2);
      free = at + 7 * word.length + 6;
      labels.push(svg("text", { class: "axis", x: at, y: 13 }, word));
    });
    return labels;
  }

  /** Moves the playhead. @param {number} tick @param {number} time */
  draw(tick, time) {
    const scene = /** @type {Scene} */ (this.scene), isEnd = tick >= scene.last;
    this.head.setAttribute("x", String(this.x(time)));
    this.head.setAttribute("width", String(isEnd ? 2 : Math.max(2, (scene.ticks[tick + 1] - scene.ticks[tick]) * this.unit)));
    const at = this.x(time), { scrollLeft, clientWidth } = this.host;
    if (at < scrollLeft + 20 || at > scrollLeft + clientWidth - 60) this.host.scrollLeft = at - clientWidth / 2;
  }

  /** Where a block stays over time, and the row of a device.
   * @param {{rank: number, block: string | null} | null} selected
   * @param {Fault | null} wrong */
  mark(selected, wrong) {
    const scene = /** @type {Scene} */ (this.scene), name = selected?.block ? plain(selected.block) : null;
    this.rows.forEach((row, rank) => {
      row.classList.toggle("selected", selected?.rank === rank);
      row.classList.toggle("wrong", Boolean(wrong?.ranks.includes(rank)));
    });
    this.curves.forEach((curve, rank) => curve.classList.toggle("selected", selected?.rank === rank));
    const chosen = this.messages.filter((way) => way.getAttribute("data-block") === name);
    this.above.replaceChildren(...chosen.map((way) => way.cloneNode(true)));
    this.host.classList.toggle("has-choice", name !== null);
    const same = name === null ? [] : scene.stays.filter((stay) => plain(stay.block) === name);
    this.stays.replaceChildren(...same.map((stay) => svg("rect", {
      x: this.x(stay.from), y: this.y(stay.rank), height: this.row, rx: 3, width: Math.max(1, this.x(Math.min(stay.to, scene.end)) - this.x(stay.from)),
    })));
  }
}

/** The colour of a phase's bars. @param {string} phase */
function kindOf(phase) {
  const word = phase.split(".").at(-1) ?? "";
  if (/backward|^d|delta/.test(word)) return "backward";
  if (/gradient|weight/.test(word)) return "gradient";
  if (/update|copy|master|first|second|average|loss/.test(word)) return "other";
  return "forward";
}
