// What is to be seen of a run at each tick of its clock: products, flights of blocks, what every
// device holds, and the bytes that it has sent and held. Everything here is counted from a run.

/** @typedef {{rank: number, start: number, end: number, phase: string, cell: string, reads: string[], writes: string}} Bar */
/** @typedef {{block: string, into: string, from: number, to: number, start: number, end: number, bytes: number}} Flight */
/** @typedef {{op: string, group: number[], start: number, end: number, gives: Map<number, string[]>, gets: Map<number, string[]>, bytes: number}} Meeting */
/** @typedef {{rank: number, block: string, from: number, to: number, bytes: number, row: string, slot: number}} Stay of a block on a device */
/** @typedef {{sent: number, held: number, peak: number}} Amounts */

const BYTES = 4; // of an element: float32
const plain = (/** @type {string} */ block) => block.replace(/'$/, "");
const tensorOf = (/** @type {string} */ block) => plain(block).split("[")[0];
const SENDS = ["isend", "send"], RECEIVES = ["irecv", "recv"], MAP_TENSORS = ["I", "W", "O", "dI", "dW", "dO"];

class Scene {
  /** @param {Run} run */
  constructor(run) {
    this.run = run;
    this.ranks = run.ranks;
    const timed = run.events.filter((event) => event.end > event.start);
    this.ticks = [...new Set([0, ...timed.flatMap((event) => [event.start, event.end])])].sort((a, b) => a - b);
    this.last = this.ticks.length - 1;
    this.end = this.ticks[this.last];
    /** @type {Bar[]} */
    this.bars = run.events.filter((event) => event.op === "compute" && event.phase).map((event) => ({
      rank: event.rank, start: event.start, end: event.end, phase: event.phase, cell: event.cell, reads: event.reads,
      writes: plain(event.blocks[0]),
    }));
    this.flights = flightsOf(run.events);
    this.meetings = meetingsOf(run.events);
    this.stays = staysOf(run, this.end);
    this.isMap = this.stays.every((stay) => MAP_TENSORS.includes(tensorOf(stay.block)));
    this.placeStays();
    this.labels = this.ticks.map((_, tick) => this.labelOf(tick));
    this.amounts = this.count();
  }

  /** Gives every stay a row and a slot of its own in its device, the first that is free. */
  placeStays() {
    /** @type {Map<string, number>} row -> most slots on any device */
    this.rows = new Map();
    /** @type {Map<string, number[]>} */
    const until = new Map();
    for (const stay of [...this.stays].sort((a, b) => a.from - b.from)) {
      stay.row = this.isMap ? tensorOf(stay.block).replace(/^d/, "") : "";
      const key = `${stay.rank} ${stay.row}`, slots = until.get(key) ?? [];
      const free = slots.findIndex((time) => time <= stay.from);
      stay.slot = free < 0 ? slots.length : free;
      slots[stay.slot] = Math.max(stay.to, stay.from + 1e-9);
      until.set(key, slots);
      this.rows.set(stay.row, Math.max(this.rows.get(stay.row) ?? 0, slots.length));
    }
    if (this.isMap) this.rows = new Map(["I", "W", "O"].filter((row) => this.rows.has(row)).map((row) => [row, this.rows.get(row) ?? 1]));
  }

  /** The phase and step of a tick. */
  labelOf(/** @type {number} */ tick) {
    if (tick === this.last) return "end";
    const [start, end] = [this.ticks[tick], this.ticks[tick + 1]];
    const now = this.bars.filter((bar) => bar.start < end && bar.end > start);
    const phases = [...new Set(now.map((bar) => bar.phase))];
    if (!phases.length) {
      const meeting = this.meetings.find((one) => one.start < end && one.end > start);
      const next = this.bars.filter((bar) => bar.start >= end).sort((a, b) => a.start - b.start)[0];
      return meeting ? meeting.op.replace("_", "-") : next && this.isMap ? `for ${next.phase}` : "messages";
    }
    if (phases.length > 2) return `${phases.length} phases`;
    if (!this.isMap) return phases.join(", ");
    const starts = [...new Set(this.bars.filter((bar) => bar.phase === phases[0]).map((bar) => Math.floor(bar.start)))];
    return `${phases.join(" + ")} t=${starts.sort((a, b) => a - b).indexOf(Math.floor(start))}`;
  }

  /** For each tick and rank the bytes sent and held until then. @returns {Amounts[][]} */
  count() {
    const now = range(this.ranks).map(() => ({ sent: 0, held: 0, peak: 0 }));
    const sends = this.run.events.filter((event) => event.elements > 0).sort((a, b) => a.end - b.end);
    const changes = range(this.ranks).map((rank) => this.run.held.filter((change) => change.rank === rank));
    const places = changes.map(() => 0);
    let sent = 0;
    return this.ticks.map((time) => {
      for (; sent < sends.length && sends[sent].end <= time; sent++) now[sends[sent].rank].sent += sends[sent].elements * BYTES;
      changes.forEach((list, rank) => {
        for (; places[rank] < list.length && list[places[rank]].time <= time; places[rank]++) {
          now[rank].held += list[places[rank]].elements * BYTES;
          now[rank].peak = Math.max(now[rank].peak, now[rank].held);
        }
      });
      return now.map((one) => ({ ...one }));
    });
  }

  /** Stays of a time, each with whether it is still arriving. @param {number} time */
  held(time) {
    const isLast = time >= this.end;
    return this.stays.filter((stay) => stay.from <= time && (stay.to > time || (isLast && stay.to >= this.end)));
  }

  /** Whether a block is still on its way to a device.
   * @param {number} rank
   * @param {string} block
   * @param {number} time */
  arriving(rank, block, time) {
    return this.flights.find((one) => one.to === rank && one.into === block && one.start <= time && time < one.end);
  }

  /** What runs or flies in the interval of a tick.
   * @template {{start: number, end: number}} T
   * @param {T[]} things
   * @param {number} tick
   * @returns {T[]} */
  during(things, tick) {
    if (tick >= this.last) return [];
    const [start, end] = [this.ticks[tick], this.ticks[tick + 1]];
    return things.filter((one) => (one.start < end && one.end > start) || (one.start === one.end && one.start === end));
  }
}

/** Pairs sends with receives: of one channel in order, those that end together.
 * @param {Happening[]} events
 * @returns {Flight[]} */
function flightsOf(events) {
  /** @type {Map<string, Happening[]>} */
  const open = new Map();
  for (const event of events) {
    if (RECEIVES.includes(event.op)) {
      const key = `${event.peer} ${event.rank} ${event.end}`;
      open.set(key, [...(open.get(key) ?? []), event]);
    }
  }
  return events.filter((event) => SENDS.includes(event.op)).map((sent) => {
    const waiting = open.get(`${sent.rank} ${sent.peer} ${sent.end}`) ?? [];
    const place = Math.max(0, waiting.findIndex((one) => plain(one.blocks[0]) === plain(sent.blocks[0])));
    const [received] = waiting.splice(place, 1);
    const start = Math.max(sent.start, received?.start ?? 0);
    return {
      block: sent.blocks[0], into: received?.blocks[0] ?? sent.blocks[0], from: sent.rank, to: sent.peer,
      start: Math.min(start, sent.end), end: sent.end, bytes: sent.elements * BYTES,
    };
  });
}

/** Groups the calls of each collective: same ranks, same end, same place among a member's calls.
 * @param {Happening[]} events
 * @returns {Meeting[]} */
function meetingsOf(events) {
  /** @type {Map<string, Meeting>} */
  const meetings = new Map();
  /** @type {Map<string, number>} */
  const calls = new Map();
  for (const event of events) {
    if (!event.group.length) continue;
    const key = `${event.op} ${event.group} ${event.end}`, call = calls.get(`${event.rank} ${key}`) ?? 0;
    calls.set(`${event.rank} ${key}`, call + 1);
    const meeting = meetings.get(`${key} ${call}`) ??
      { op: event.op, group: event.group, start: 0, end: event.end, gives: new Map(), gets: new Map(), bytes: 0 };
    meeting.start = Math.max(meeting.start, event.start);
    meeting.gives.set(event.rank, event.reads);
    meeting.gets.set(event.rank, event.blocks.filter((block) => !event.reads.includes(block) || /reduce/.test(event.op)));
    meeting.bytes += event.elements * BYTES;
    meetings.set(`${key} ${call}`, meeting);
  }
  return [...meetings.values()];
}

/** From when to when each device holds each block. @param {Run} run @param {number} end @returns {Stay[]} */
function staysOf(run, end) {
  /** @type {Stay[]} */
  const stays = [];
  /** @type {Map<string, {stay: Stay, elements: number}>} */
  const open = new Map();
  for (const { rank, time, block, elements } of run.held) {
    const key = `${rank} ${block}`, known = open.get(key);
    if (!known) {
      const stay = { rank, block, from: time, to: end + 1, bytes: elements * BYTES, row: "", slot: 0 };
      open.set(key, { stay, elements });
      stays.push(stay);
    } else {
      known.elements += elements;
      known.stay.bytes = Math.max(known.stay.bytes, known.elements * BYTES);
      if (known.elements <= 0) {
        known.stay.to = time;
        open.delete(key);
      }
    }
  }
  return stays.filter((stay) => stay.to > stay.from || stay.to > end);
}

/** The block that a member gives to a collective, or gets; that of another one where it has none.
 * @param {Meeting} meeting
 * @param {number} rank */
function blockOf(meeting, rank) {
  const any = [...meeting.gives.values(), ...meeting.gets.values()].flat();
  return meeting.gives.get(rank)?.[0] ?? meeting.gets.get(rank)?.[0] ?? any[0] ?? "";
}

/** What is known of a block on a device at a time, as sentences.
 * @param {Scene} scene
 * @param {number} rank
 * @param {string} block
 * @param {number} tick
 * @returns {string[]} */
function storyOf(scene, rank, block, tick) {
  const time = scene.ticks[tick], name = plain(block), lines = [];
  const when = (/** @type {number} */ at) => scene.labels[Math.max(0, scene.ticks.findLastIndex((one) => one <= at))];
  const same = (/** @type {{block: string}} */ one) => plain(one.block) === name;
  const coming = scene.arriving(rank, block, time);
  const arrived = scene.flights.filter((one) => same(one) && one.to === rank && one.end <= time).at(-1);
  const joined = scene.meetings.filter((one) => one.gets.get(rank)?.map(plain).includes(name) && one.end <= time).at(-1);
  const made = scene.bars.filter((bar) => bar.rank === rank && bar.writes === name && bar.start <= time).at(-1);
  if (coming) lines.push(`Arrives from device ${coming.from} by the end of ${when(coming.start)}: ${coming.bytes} bytes.`);
  else if (arrived && (!joined || joined.end < arrived.end)) lines.push(`Came from device ${arrived.from} during ${when(arrived.start)}: ${arrived.bytes} bytes.`);
  else if (joined) lines.push(`Came by ${joined.op.replace("_", "-")} over devices ${joined.group.join(", ")}.`);
  else if (made) lines.push(`A sum of products made here, last during ${when(made.start)}.`);
  else lines.push("Here from the start.");
  const reads = scene.bars.filter((bar) => bar.reads.includes(name) && bar.end > time).sort((a, b) => a.start - b.start);
  const here = reads.find((bar) => bar.rank === rank), there = reads.find((bar) => bar.rank !== rank && bar.start > time);
  if (here) lines.push(here.start <= time ? `Read here now, for ${here.writes}.` : `Needed here next at ${when(here.start)}, for ${here.writes}.`);
  const leaving = scene.flights.find((one) => same(one) && one.from === rank && one.end > time);
  const meeting = scene.meetings.find((one) => one.gives.get(rank)?.map(plain).includes(name) && one.end > time);
  if (leaving) lines.push(`${leaving.start <= time ? "Leaves now" : `Leaves at ${when(leaving.start)}`} for device ${leaving.to}.`);
  if (meeting) lines.push(`Given to ${meeting.op.replace("_", "-")} over devices ${meeting.group.join(", ")} at ${when(meeting.start)}.`);
  if (there) {
    const carrier = scene.flights.filter((one) => same(one) && one.to === there.rank && one.end <= there.start).at(-1);
    const by = carrier && carrier.end > time ? `, carried by the message ${carrier.from} -> ${carrier.to}` : "";
    lines.push(`Next elsewhere: device ${there.rank} at ${when(there.start)}${by}.`);
  }
  if (!here && !leaving && !meeting && !there) lines.push("Nobody needs it any more.");
  return lines;
}
