// The mesh: a card for every device with its blocks, and the blocks that fly between the cards.

const SVG = "http://www.w3.org/2000/svg";

/** Attributes, of which a true one has no value and a false one is left out, and children. @typedef {[attributes?: Record<string, string | number | boolean>, ...children: (Element | string)[]]} Parts */

/** @template {Element} T @param {T} made @param {Parts} parts */
function filled(made, [attributes = {}, ...children]) {
  for (const [key, value] of Object.entries(attributes)) if (value !== false) made.setAttribute(key, value === true ? "" : String(value));
  made.append(...children);
  return made;
}

/** @param {string} name @param {Parts} parts @returns {SVGElement} */
const svg = (name, ...parts) => filled(document.createElementNS(SVG, name), parts);
/** @param {string} name @param {Parts} parts @returns {HTMLElement} */
const html = (name, ...parts) => filled(document.createElement(name), parts);

/** The colours of blocks: a hue for each tensor, a strength for each of its blocks. */
class Palette {
  /** @param {Scene} scene */
  constructor(scene) {
    /** @type {Map<string, string[]>} */
    this.blocks = new Map();
    for (const stay of scene.stays) {
      const known = this.blocks.get(tensorOf(stay.block)) ?? [], name = plain(stay.block);
      if (!known.includes(name)) this.blocks.set(tensorOf(name), [...known, name].sort());
    }
    this.tensors = scene.isMap ? MAP_TENSORS.filter((tensor) => this.blocks.has(tensor)) : [...this.blocks.keys()];
    this.isMap = scene.isMap;
  }

  hue(/** @type {string} */ block) {
    const tensor = tensorOf(block);
    return `var(--block-${this.isMap ? tensor : MAP_TENSORS[Math.max(0, this.tensors.indexOf(tensor)) % MAP_TENSORS.length]})`;
  }

  fill(/** @type {string} */ block) {
    const known = this.blocks.get(tensorOf(block)) ?? [], place = Math.max(0, known.indexOf(plain(block)));
    const strength = known.length < 2 ? 30 : 14 + (44 * place) / (known.length - 1);
    return `color-mix(in oklab, ${this.hue(block)} ${Math.round(strength)}%, var(--card))`;
  }
}

class MeshView {
  /** @param {HTMLElement} host @param {(rank: number | null, block: string | null) => void} select */
  constructor(host, select) {
    this.host = host;
    this.select = select;
    this.tick = 0;
    /** @type {{rank: number, block: string | null} | null} */
    this.selected = null;
    /** @type {Fault | null} */
    this.wrong = null;
  }

  /** @param {Scene} scene */
  show(scene) {
    this.scene = scene;
    this.palette = new Palette(scene);
    const { axes, places } = scene.run, { ranks } = scene;
    const lengths = axes.map((_, axis) => 1 + Math.max(...places.map((place) => place[axis])));
    // Two axes are rows and columns, a third puts such grids next to one another.
    const long = axes.length >= 2 ? lengths[1] : axes.length ? Math.min(ranks, 6) : Math.ceil(Math.sqrt(ranks));
    this.hasNames = ranks <= 16;
    const names = scene.stays.map((stay) => this.short(stay.block).length);
    this.chip = this.hasNames
      ? { width: Math.min(72, Math.max(30, 6.1 * Math.max(...names) + 8)), height: 20, gap: 4 }
      : { width: 15, height: 13, gap: 3 };
    this.layRows();
    const { card } = this;
    this.cards = range(ranks).map((rank) => {
      const place = places[rank] ?? [];
      let row = Math.floor(rank / long), column = rank % long;
      if (axes.length === 2) [row, column] = place;
      if (axes.length > 2) {
        const outer = place.slice(2).reduce((flat, at, i) => flat * lengths[i + 2] + at, 0);
        [row, column] = [place[0], place[1] + outer * (long + 0.25)];
      }
      return { x: 8 + column * (card.width + 26), y: 8 + row * (card.height + 26) };
    });
    const width = Math.max(...this.cards.map(({ x }) => x)) + card.width + 8;
    const height = Math.max(...this.cards.map(({ y }) => y)) + card.height + 8;
    this.arrows = svg("g", { class: "arrows" });
    this.chips = svg("g", { class: "chips" });
    this.flying = svg("g", { class: "flying" });
    this.devices = svg("g", { role: "group", "aria-label": "Devices" });
    this.groups = this.cards.map(({ x, y }, rank) => this.deviceCard(rank, x, y));
    this.devices.append(...this.groups);
    this.host.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Mesh of devices" },
      this.devices, this.arrows, this.chips, this.flying));
    /** @type {Map<string, SVGElement>} */
    this.drawn = new Map();
  }

  /** What a chip says: within its tensor's row the index alone. */
  short(/** @type {string} */ block) {
    const name = plain(block);
    if (!this.scene?.isMap) return name;
    return `${tensorOf(name).startsWith("d") ? "d" : ""}${name.slice(name.indexOf("[") + 1, -1)}`;
  }

  /** Where each row of a card begins, and how large a card is. */
  layRows() {
    const { chip } = this, scene = /** @type {Scene} */ (this.scene), most = scene.isMap ? (this.hasNames ? 4 : 6) : 3;
    /** @type {Map<string, number>} */
    this.tops = new Map();
    this.columns = Math.min(most, Math.max(...scene.rows.values(), scene.isMap ? 2 : 3));
    let top = this.hasNames ? 30 : 22;
    for (const [row, slots] of scene.rows) {
      this.tops.set(row, top);
      top += Math.min(6, Math.ceil(slots / this.columns)) * (chip.height + chip.gap) + 2;
    }
    this.left = scene.isMap ? 24 : 10;
    this.card = { width: Math.max(this.left + this.columns * (chip.width + chip.gap) + 6, this.hasNames ? 152 : 92), height: top + (this.hasNames ? 52 : 18) };
  }

  /** @param {number} rank @param {number} x @param {number} y */
  deviceCard(rank, x, y) {
    const { card } = this, scene = /** @type {Scene} */ (this.scene);
    const place = scene.run.axes.map((axis, i) => `${axis}=${scene.run.places[rank][i]}`).join(" ");
    const group = svg("g", {
      class: "device", role: "group", "aria-roledescription": "device", tabindex: rank === 0 ? 0 : -1, "data-rank": rank, "aria-label": `device ${rank} ${place}`,
      transform: `translate(${x} ${y})`,
    }, svg("rect", { width: card.width, height: card.height, rx: 9, class: "card" }),
    svg("text", { x: 10, y: this.hasNames ? 19 : 15, class: "rank" }, String(rank)));
    if (this.hasNames) group.append(svg("text", { x: card.width - 9, y: 19, class: "place", "text-anchor": "end" }, place));
    if (scene.isMap) {
      for (const [row, top] of this.tops) group.append(svg("text", { x: 10, y: top + this.chip.height - (this.hasNames ? 6 : 2), class: "row" }, row));
    }
    if (this.hasNames) group.append(svg("text", { x: 10, y: card.height - 33, class: "product" }));
    group.append(svg("text", { x: 10, y: card.height - (this.hasNames ? 12 : 7), class: "amounts" }));
    group.addEventListener("click", () => this.select(rank, null));
    group.addEventListener("keydown", (event) => this.key(/** @type {KeyboardEvent} */ (event), rank));
    group.addEventListener("focus", () => this.select(rank, null));
    return group;
  }

  /** Arrows go to a neighbour, Enter and Space from block to block.
   * @param {KeyboardEvent} event
   * @param {number} rank */
  key(event, rank) {
    const [here, ways] = [this.cards[rank], { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }];
    const way = ways[/** @type {keyof typeof ways} */ (event.key)];
    if (way) {
      const ahead = this.cards.map(({ x, y }, other) => ({ other, along: (x - here.x) * way[0] + (y - here.y) * way[1], off: Math.abs((x - here.x) * way[1]) + Math.abs((y - here.y) * way[0]) }))
        .filter(({ along, off }) => along > 1 && off <= along).sort((a, b) => a.off + a.along - b.off - b.along);
      if (ahead.length) this.focus(ahead[0].other);
      event.preventDefault();
    } else if (event.key === "Enter" || event.key === " ") {
      const blocks = this.blocksOf(rank), next = blocks[(blocks.indexOf(this.selected?.block ?? "") + 1) % blocks.length];
      this.select(rank, next ?? null);
      event.preventDefault();
    }
  }

  focus(/** @type {number} */ rank) {
    this.groups.forEach((group, other) => group.setAttribute("tabindex", other === rank ? "0" : "-1"));
    this.groups[rank].focus();
  }

  blocksOf(/** @type {number} */ rank) {
    const scene = /** @type {Scene} */ (this.scene);
    return scene.held(scene.ticks[this.tick ?? 0]).filter((stay) => stay.rank === rank).map((stay) => stay.block);
  }

  /** The middle of a block's chip on a device.
   * @param {number} rank
   * @param {string} block
   * @param {number} time */
  spot(rank, block, time) {
    const scene = /** @type {Scene} */ (this.scene), name = plain(block);
    const stay = scene.stays.find((one) => one.rank === rank && one.block === block && one.from <= time && one.to >= time) ??
      scene.stays.find((one) => one.rank === rank && plain(one.block) === name && one.from <= time && one.to >= time);
    const { x, y } = this.cards[rank];
    return stay ? this.at(stay) : { x: x + this.card.width / 2, y: y + this.card.height / 2 };
  }

  /** @param {Stay} stay */
  at(stay) {
    const { chip, cards, columns } = this, { x, y } = cards[stay.rank];
    const line = Math.min(5, Math.floor(stay.slot / columns));
    return {
      x: x + this.left + (stay.slot % columns) * (chip.width + chip.gap) + chip.width / 2,
      y: y + (this.tops.get(stay.row) ?? 30) + line * (chip.height + chip.gap) + chip.height / 2,
    };
  }

  /** @param {string} block @param {string} kind @param {number} rank */
  chipOf(block, kind, rank) {
    const { width, height } = this.chip, palette = /** @type {Palette} */ (this.palette);
    const chip = svg("g", { class: `chip ${kind}`, style: `--hue:${palette.hue(block)};--fill:${palette.fill(block)}` },
      svg("rect", { x: -width / 2, y: -height / 2, width, height, rx: 4 }));
    if (this.hasNames) {
      const text = this.short(block), fits = Math.floor((width - 4) / 5.9);
      chip.append(svg("text", { y: 3.6, "text-anchor": "middle" }, text.length > fits ? `${text.slice(0, fits - 1)}…` : text));
    }
    if (rank >= 0) {
      chip.addEventListener("pointerenter", () => this.select(rank, block));
      chip.addEventListener("click", () => this.select(rank, block));
    }
    return chip;
  }

  /** Draws a tick, or the way from it to the next: `time` lies between both.
   * @param {number} tick
   * @param {number} time */
  draw(tick, time) {
    const scene = /** @type {Scene} */ (this.scene), rests = time === scene.ticks[tick];
    if (rests || this.tick !== tick) this.drawDevices(tick);
    this.tick = tick;
    this.arrows.replaceChildren(...(rests ? this.waysOf(tick) : []));
    this.flying.replaceChildren(...(rests ? [] : this.inFlight(tick, time)));
    this.host.classList.toggle("moving", !rests);
  }

  /** @param {number} tick */
  drawDevices(tick) {
    const scene = /** @type {Scene} */ (this.scene), time = scene.ticks[tick];
    const bars = scene.during(scene.bars, tick), read = new Set(bars.flatMap((bar) => bar.reads.map((block) => `${bar.rank} ${block}`)));
    const written = new Set(bars.map((bar) => `${bar.rank} ${bar.writes}`));
    /** @type {Map<string, SVGElement>} */
    const next = new Map();
    for (const stay of scene.held(time)) {
      const key = `${stay.rank} ${stay.block}`, { x, y } = this.at(stay);
      const chip = this.drawn.get(key) ?? this.chipOf(stay.block, "", stay.rank);
      chip.setAttribute("transform", `translate(${x} ${y})`);
      chip.classList.toggle("arriving", Boolean(scene.arriving(stay.rank, stay.block, time)));
      chip.classList.toggle("read", read.has(`${stay.rank} ${plain(stay.block)}`));
      chip.classList.toggle("written", written.has(`${stay.rank} ${plain(stay.block)}`));
      next.set(key, chip);
    }
    this.drawn = next;
    this.chips.replaceChildren(...next.values());
    const amounts = scene.amounts[tick];
    this.groups.forEach((group, rank) => {
      const mine = bars.filter((bar) => bar.rank === rank), [first] = mine, line = group.querySelector(".product");
      if (line) {
        const text = !first ? "" : scene.isMap ? `${first.writes} += ${first.reads.join(" ")}` : `${first.phase} ${first.cell}`;
        const fits = Math.floor((this.card.width - 18) / 5.5), more = mine.length > 1 ? ` +${mine.length - 1}` : "";
        line.textContent = (text.length + more.length > fits ? `${text.slice(0, fits - more.length - 1)}…` : text) + more;
      }
      const { sent, held, peak } = amounts[rank];
      const text = group.querySelector(".amounts");
      if (text) text.textContent = this.hasNames ? `sent ${bytesText(sent)}  peak ${bytesText(peak)}` : `${bytesText(sent)} | ${bytesText(peak)}`;
      group.classList.toggle("works", mine.length > 0);
      group.setAttribute("aria-label", `device ${rank}, ${mine.length} products now, sent ${sent} bytes, holds ${held}, at most ${peak}`);
    });
    this.mark();
  }

  /** The arrows of what moves during a tick. @param {number} tick */
  waysOf(tick) {
    const scene = /** @type {Scene} */ (this.scene), palette = /** @type {Palette} */ (this.palette);
    const ways = scene.during(scene.flights, tick).map((flight) => {
      const from = this.spot(flight.from, flight.block, flight.start), to = this.spot(flight.to, flight.into, flight.start);
      return svg("path", { class: "way", d: curve(from, to), style: `--hue:${palette.hue(flight.block)}`, "data-block": plain(flight.block) });
    });
    const meetings = scene.during(scene.meetings, tick).flatMap((meeting) => {
      const centre = this.centre(meeting.group);
      return meeting.group.map((rank) => svg("path", {
        class: "way meeting", style: `--hue:${palette.hue(blockOf(meeting, rank))}`,
        d: curve(this.spot(rank, blockOf(meeting, rank), meeting.start), centre),
      }));
    });
    return [...ways, ...meetings];
  }

  centre(/** @type {number[]} */ group) {
    const middle = (/** @type {"x" | "y"} */ along, /** @type {number} */ half) =>
      group.reduce((sum, rank) => sum + this.cards[rank][along], 0) / group.length + half;
    return { x: middle("x", this.card.width / 2), y: middle("y", this.card.height / 2) };
  }

  /** Chips on their way at a time. Those of a collective meet in the middle of its group first.
   * @param {number} tick
   * @param {number} time */
  inFlight(tick, time) {
    const scene = /** @type {Scene} */ (this.scene), [from, to] = [scene.ticks[tick], scene.ticks[tick + 1]];
    const share = (/** @type {{start: number, end: number}} */ one) =>
      one.end > one.start ? (time - one.start) / (one.end - one.start) : (time - from) / (to - from);
    /** @type {SVGElement[]} */
    const chips = [];
    const put = (/** @type {string} */ block, /** @type {Spot} */ start, /** @type {Spot} */ end, /** @type {number} */ part) => {
      const { x, y } = along(start, end, ease(Math.min(1, Math.max(0, part))));
      const chip = this.chipOf(block, "flies", -1);
      chip.setAttribute("transform", `translate(${x} ${y})`);
      chips.push(chip);
    };
    for (const flight of scene.during(scene.flights, tick)) {
      put(flight.block, this.spot(flight.from, flight.block, flight.start), this.spot(flight.to, flight.into, flight.end), share(flight));
    }
    for (const meeting of scene.during(scene.meetings, tick)) {
      const part = share(meeting), centre = this.centre(meeting.group);
      for (const rank of meeting.group) {
        const [blocks, first] = part < 0.5 ? [meeting.gives.get(rank), true] : [meeting.gets.get(rank), false];
        for (const block of (blocks ?? []).slice(0, 3)) {
          const spot = this.spot(rank, block, first ? meeting.start : meeting.end);
          put(block, first ? spot : centre, first ? centre : spot, first ? 2 * part : 2 * part - 1);
        }
      }
    }
    return chips;
  }

  /** Marks a device and a block, wherever it is; and what is wrong, if anything is.
   * @param {{rank: number, block: string | null} | null} [selected]
   * @param {Fault | null} [wrong] */
  mark(selected = this.selected, wrong = this.wrong) {
    [this.selected, this.wrong] = [selected, wrong];
    const name = selected?.block ? plain(selected.block) : null;
    this.groups.forEach((group, rank) => {
      group.classList.toggle("selected", selected?.rank === rank);
      group.classList.toggle("wrong", Boolean(wrong?.ranks.includes(rank)));
    });
    this.drawn.forEach((chip, key) => {
      const [rank, block] = [Number(key.split(" ")[0]), key.slice(key.indexOf(" ") + 1)];
      chip.classList.toggle("same", plain(block) === name);
      chip.classList.toggle("chosen", selected?.rank === rank && selected?.block === block);
      chip.classList.toggle("wrong", Boolean(wrong?.blocks.includes(plain(block))));
    });
    this.host.classList.toggle("has-choice", name !== null);
    for (const way of this.arrows.children) way.classList.toggle("same", way.getAttribute("data-block") === name);
  }
}

/** @typedef {{x: number, y: number}} Spot */
const ease = (/** @type {number} */ part) => part * part * (3 - 2 * part);

/** The bend of the way between two spots: to the left of it, more for a longer way.
 * @param {Spot} from
 * @param {Spot} to */
function bend(from, to) {
  const [across, down] = [to.x - from.x, to.y - from.y], reach = 0.16;
  return { x: (from.x + to.x) / 2 + reach * down, y: (from.y + to.y) / 2 - reach * across };
}

/** @param {Spot} from @param {Spot} to */
function curve(from, to) {
  const middle = bend(from, to);
  return `M${from.x.toFixed(1)} ${from.y.toFixed(1)}Q${middle.x.toFixed(1)} ${middle.y.toFixed(1)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
}

/** The spot at a part of the way. @param {Spot} from @param {Spot} to @param {number} part */
function along(from, to, part) {
  const middle = bend(from, to), rest = 1 - part;
  const mix = (/** @type {"x" | "y"} */ axis) => rest * rest * from[axis] + 2 * rest * part * middle[axis] + part * part * to[axis];
  return { x: mix("x"), y: mix("y") };
}

const bytesText = (/** @type {number} */ bytes) => (bytes < 1000 ? `${Math.round(bytes)} B` : `${(bytes / 1000).toFixed(1)} kB`);
