// Runs: what every device did, and what it held. Those of the library are the emulator's events,
// packed by primepar/api/page_data.py; that of a map which is edited is made here from its moves.

// A happening is one event of primepar/schedule/events.py; `peer` is -1 without one, `elements` left
// the rank, `cell` is the sub-operator, `M=0 N=1 K=0`.
/** @typedef {{rank: number, op: string, blocks: string[], start: number, end: number, phase: string, peer: number, elements: number, cell: string, reads: string[], group: number[]}} Happening */
/** @typedef {{rank: number, time: number, block: string, elements: number}} Change of what a device holds */
/** @typedef {{ranks: number, axes: string[], places: number[][], events: Happening[], held: Change[]}} Run */

/** @param {string} packed deflated JSON, in letters */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** @param {string} packed @returns {Promise<Run>} */
async function unpackRun(packed) {
  const data = await unpack(packed);
  /** @type {string[]} */
  const texts = data.texts;
  const words = (/** @type {number} */ place) => texts[place].split(" ").filter(Boolean);
  return {
    ranks: data.ranks, axes: data.axes, places: data.places,
    events: data.events.map((/** @type {number[]} */ row) => ({
      rank: row[0], op: texts[row[1]], blocks: words(row[2]), start: row[3], end: row[4], phase: texts[row[5]],
      peer: row[6], elements: row[7], cell: texts[row[8]], reads: words(row[9]),
      group: texts[row[10]].split(",").filter(Boolean).map(Number),
    })),
    held: data.held.map((/** @type {number[]} */ row) => ({
      rank: row[0], time: row[1], block: texts[row[2]], elements: row[3],
    })),
  };
}

/** The run of a map on a mesh, one unit for each step, and for each exchange before or after steps.
 * @param {MeshMap} mesh
 * @returns {Run} */
function runOfMesh(mesh) {
  return new MeshRun(mesh).run();
}

class MeshRun {
  /** @param {MeshMap} mesh */
  constructor(mesh) {
    this.mesh = mesh;
    this.time = 0;
    /** @type {Happening[]} */
    this.events = [];
    /** @type {Change[]} */
    this.changes = [];
    /** @type {Set<string>[]} */
    this.here = range(mesh.ranks).map(() => new Set());
  }

  run() {
    const { mesh } = this;
    for (const [tensor, held] of /** @type {[string, Set<number>[]][]} */ ([
      ["I", mesh.start("forward", "I")], ["W", mesh.start("forward", "W")], ["dO", mesh.end("forward", "O")],
    ])) held.forEach((blocks, rank) => sorted(blocks).forEach((block) => this.add(rank, mesh.blockName(tensor, block), 0)));
    PHASES.forEach((phase) => this.phase(phase));
    return { ranks: mesh.ranks, axes: mesh.axes, places: mesh.places, events: this.events, held: this.changes };
  }

  /** Elements of a block: every slice has two, as where `check` runs it without a shape. @param {string} name */
  size(name) { return 2 ** this.mesh.tensorDims(name.split("[")[0]).length; }

  /** @param {number} rank @param {string} block @param {number} time */
  add(rank, block, time) {
    if (this.here[rank].has(block)) return;
    this.here[rank].add(block);
    this.changes.push({ rank, time, block, elements: this.size(block) });
  }

  /** @param {number} rank @param {string} block @param {number} time */
  drop(rank, block, time) {
    if (!this.here[rank].delete(block)) return;
    this.changes.push({ rank, time, block, elements: -this.size(block) });
    this.note({ rank, op: "free", blocks: [block], start: time, end: time });
  }

  /** @param {Partial<Happening>} event */
  note(event) {
    this.events.push({ rank: 0, op: "", blocks: [], start: 0, end: 0, phase: "", peer: -1, elements: 0, cell: "", reads: [], group: [], ...event });
  }

  /** Messages that take the next unit; a partial sum arrives in a scratch.
   * @param {Hop[]} hops
   * @param {boolean} sums */
  send(hops, sums) {
    for (const { tensor, block, source, target } of hops) {
      const name = this.mesh.blockName(tensor, block), scratch = sums && this.here[target].has(name) ? `${name}'` : name;
      const times = { start: this.time, end: this.time + 1 };
      this.add(target, scratch, this.time);
      this.note({ rank: source, op: "isend", blocks: [name], peer: target, elements: this.size(name), ...times });
      this.note({ rank: target, op: "irecv", blocks: [scratch], peer: source, ...times });
    }
  }

  /** @param {string} phase */
  phase(phase) {
    const { mesh } = this, { reads } = PRODUCTS[phase], moves = mesh.moves(phase);
    if (moves.prologue.length) {
      this.send(moves.prologue, false);
      this.time += 1;
    }
    for (const step of range(mesh.steps)) {
      this.multiply(phase, step);
      this.send(moves.operands[step], false);
      this.send(moves.partials[step], true);
      this.time += 1;
      for (const { tensor, block, source, target } of moves.partials[step]) {
        const name = mesh.blockName(tensor, block);
        this.drop(source, name, this.time);
        this.drop(target, `${name}'`, this.time);
      }
      for (const tensor of reads) {
        less(mesh.held(phase, tensor, step), this.kept(phase, tensor, step)).forEach((blocks, rank) =>
          sorted(blocks).forEach((block) => this.drop(rank, mesh.blockName(tensor, block), this.time)));
      }
      this.finish(moves.returns[step]);
    }
    for (const [after, tensor] of mesh.hasHomes ? [["backward", "W"], ["gradient", "I"], ["gradient", "dO"]] : []) {
      if (after !== phase) continue;
      const left = mesh.resident(phase, tensor), stays = tensor === "W" ? mesh.home("W") : left.map(() => new Set());
      less(left, /** @type {Set<number>[]} */ (stays)).forEach((blocks, rank) =>
        sorted(blocks).forEach((block) => this.drop(rank, mesh.blockName(tensor, block), this.time)));
    }
  }

  /** @param {string} phase @param {number} step */
  multiply(phase, step) {
    const { mesh } = this, { reads, writes } = PRODUCTS[phase];
    for (const rank of range(mesh.ranks)) {
      const slices = mesh.at(phase, rank, step), cells = product(mesh.dims.map((dim) => slices[dim]));
      cells.forEach((cell, i) => {
        const one = Object.fromEntries(mesh.dims.map((dim, k) => [dim, [cell[k]]]));
        const [output, ...inputs] = [writes, ...reads].map((tensor) => mesh.blockName(tensor, [...mesh.blocks(tensor, one)][0]));
        this.add(rank, output, this.time);
        this.note({
          rank, op: "compute", blocks: [output], reads: inputs, phase, cell: mesh.dims.map((dim, k) => `${dim}=${cell[k]}`).join(" "),
          start: this.time + i / cells.length, end: this.time + (i + 1) / cells.length,
        });
      });
    }
  }

  /** Blocks of an operand that stay after a step.
   * @param {string} phase
   * @param {string} tensor
   * @param {number} step
   * @returns {Set<number>[]} */
  kept(phase, tensor, step) {
    const { mesh } = this, rest = mesh.resident(phase, tensor), now = mesh.held(phase, tensor, step);
    if (phase === "forward" && mesh.map.keeps.includes(tensor)) return both(rest, now);
    if (step + 1 < mesh.steps) return both(rest, mesh.held(phase, tensor, step + 1));
    const use = NEXT_USE.find(([before, operand]) => before === phase && operand === tensor);
    if (!use || mesh.hasHomes) return rest;
    const realigns = mesh.moves(phase).operands[step].some((hop) => hop.tensor === tensor);
    return realigns ? mesh.held(use[2], tensor, 0) : now;
  }

  /** Sums that a step finishes go to their homes in one more unit. @param {Finished[]} sums */
  finish(sums) {
    const { mesh } = this;
    const moving = sums.filter(({ parts }) => parts.length > 1 || parts.some(([home, ranks]) => ranks.some((rank) => rank !== home)));
    for (const { tensor, block, parts } of moving) {
      const name = mesh.blockName(tensor, block), homes = parts.map(([home]) => home);
      const ranks = sorted(parts.flatMap(([, taken]) => taken)), group = sorted(new Set([...homes, ...ranks]));
      const op = String(homes) === String(ranks) ? "all_reduce" : "reduce", size = this.size(name);
      for (const rank of group) {
        if (homes.includes(rank)) this.add(rank, name, this.time);
        const elements = op === "reduce" ? (homes.includes(rank) ? 0 : size) : (2 * (group.length - 1) * size) / group.length;
        this.note({
          rank, op, group, elements, start: this.time, end: this.time + 1,
          blocks: homes.includes(rank) ? [name] : [], reads: ranks.includes(rank) ? [name] : [],
        });
      }
    }
    if (!moving.length) return;
    this.time += 1;
    for (const { tensor, block, parts } of moving) {
      const name = mesh.blockName(tensor, block), homes = parts.map(([home]) => home);
      parts.flatMap(([, taken]) => taken).filter((rank) => !homes.includes(rank)).forEach((rank) => this.drop(rank, name, this.time));
    }
  }
}
