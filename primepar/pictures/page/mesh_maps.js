// A map on one mesh: which device has which slices, what moves, and what is wrong. It does what
// primepar/schedule/{sequence,movement}.py and verify/primitive/smallest_mesh.py do, and a test
// compares both on thousands of maps.
//
// A block of a tensor is one number here: its index counted through, so that numbers are in order.

/** @typedef {Record<string, (Expr | null)[]>} SliceTexts */
// A source is a map as text, as primepar/api/page_data.py gives it: axis -> its side, and no homes
// where none are declared.
/** @typedef {{axes: Record<string, string>, steps: string, phases: Record<string, string>, homes: Record<string, string>, keeps: string[], virtual: string[]}} MapSource */
/** @typedef {{axes: Record<string, string>, sides: string[], steps: Expr, phases: Record<string, SliceTexts>, homes: Record<string, SliceTexts> | null, keeps: string[], virtual: string[]}} ParsedMap */
/** @typedef {{tensor: string, block: number, source: number, target: number}} Hop */
/** @typedef {{tensor: string, block: number, parts: [number, number[]][]}} Finished a sum: home, ranks that add */
/** @typedef {{prologue: Hop[], operands: Hop[][], partials: Hop[][], returns: Finished[][]}} PhaseMoves */
/** @typedef {{property: string, sentence: string, ranks: number[], blocks: string[], phase?: string, step?: number}} Fault */

const DIMS = ["B", "M", "N", "K"];
const PHASES = ["forward", "backward", "gradient"];
/** @type {Record<string, {reads: string[], writes: string}>} */
const PRODUCTS = {
  forward: { reads: ["I", "W"], writes: "O" },
  backward: { reads: ["dO", "W"], writes: "dI" },
  gradient: { reads: ["I", "dO"], writes: "dW" },
};
/** @type {Record<string, string[]>} */
const TENSOR_DIMS = { I: ["B", "M", "N"], W: ["N", "K"], O: ["B", "M", "K"] };
/** @type {[string, string, string][]} */
const NEXT_USE = [
  ["forward", "I", "gradient"], ["forward", "W", "backward"],
  ["backward", "dO", "gradient"], ["backward", "W", "forward"],
];
const LONGEST_SIDE = 6, MOST_DEVICES = 64, MOST_DEVICES_AFTER = 16, MOST_SLICES = 1_000_000;
const MOST_SUB_OPERATORS = 4096, MOST_PLACES = 100_000;

const base = (/** @type {string} */ tensor) => tensor.replace(/^d/, "");

/** @param {MapSource} source @returns {ParsedMap} */
function parseMap(source) {
  const sides = [...new Set(Object.values(source.axes))], axes = Object.keys(source.axes);
  const named = (/** @type {string} */ where, /** @type {() => any} */ parse) => {
    try {
      return parse();
    } catch (error) {
      if (error instanceof MapError) error.message = `${where}: ${error.message}`;
      throw error;
    }
  };
  const slices = (/** @type {string} */ text, /** @type {string[]} */ names) => {
    const parsed = parseSlices(text, names);
    for (const axis of source.virtual) {
      const dims = Object.keys(parsed).filter((dim) => JSON.stringify(parsed[dim]).includes(`"name":"${axis}"`));
      if (dims.length > 1) {
        throw new MapError(`expected the virtual axis ${axis} in one dim, got it in ${dims.join(" and ")}: ` +
          "a device works on each slice of one dim with each of the others");
      }
    }
    return parsed;
  };
  const steps = named("steps", () => parseNumber(source.steps, sides));
  const phases = Object.fromEntries(PHASES.map((phase) =>
    [phase, named(phase, () => slices(source.phases[phase], [...axes, "t", ...sides]))]));
  const tensors = Object.keys(source.homes), homes = !tensors.length ? null : Object.fromEntries(tensors.map((tensor) =>
    [tensor, named(`home of ${tensor}`, () => slices(source.homes[tensor], [...axes, ...sides]))]));
  return { axes: source.axes, sides, steps, phases, homes, keeps: source.keeps, virtual: source.virtual };
}

/** All combinations of one value out of each list, the last one running fastest.
 * @param {number[][]} lists
 * @returns {number[][]} */
function product(lists) {
  return lists.reduce((/** @type {number[][]} */ all, list) => all.flatMap((head) => list.map((value) => [...head, value])), [[]]);
}

const range = (/** @type {number} */ length) => Array.from({ length }, (_, i) => i);

/** The devices in rank order: bits interleaved where all sides are one power of two. @param {number[]} lengths */
function deviceOrder(lengths) {
  const points = product(lengths.map(range)), side = lengths[0] ?? 0;
  if (!lengths.length || lengths.some((length) => length !== side) || side & (side - 1)) return points;
  const bits = Math.log2(side);
  const order = (/** @type {number[]} */ point) => range(bits).reverse().reduce((flat, bit) =>
    point.reduce((sum, axis) => 2 * sum + ((axis >> bit) & 1), flat), 0);
  return points.sort((a, b) => order(a) - order(b));
}

/** A parsed map on a mesh with these sides. Raises `MapError` where it gives no slices. */
class MeshMap {
  /** @param {ParsedMap} map @param {number[]} sides */
  constructor(map, sides) {
    this.map = map;
    this.sides = sides;
    /** @type {Record<string, number>} */
    this.along = Object.fromEntries(map.sides.map((name, i) => [name, sides[i]]));
    this.axes = Object.keys(map.axes).filter((axis) => !map.virtual.includes(axis));
    this.lengths = this.axes.map((axis) => this.along[map.axes[axis]]);
    this.places = deviceOrder(this.lengths);
    this.ranks = this.places.length;
    this.rankAt = new Map(this.places.map((place, rank) => [place.join(), rank]));
    this.steps = this.numberOfSteps();
    /** @type {Map<string, any>} */
    this.known = new Map();
    this.readDigits();
  }

  get hasHomes() { return this.map.homes !== null; }

  numberOfSteps() {
    const steps = this.valueOf("steps", this.map.steps, {});
    if (typeof steps !== "number" || steps < 1) throw new MapError(`steps: expected a positive integer, got ${steps}`);
    return steps;
  }

  /** @param {string} what @param {Expr} node @param {Record<string, Values>} values */
  valueOf(what, node, values) {
    try {
      return evaluate(node, { ...values, ...this.along });
    } catch (error) {
      if (!(error instanceof MapError)) throw error;
      throw new MapError(`${what}: ${error.message}, sides ${this.sidesText}`);
    }
  }

  get sidesText() { return `(${this.sides.join(", ")}${this.sides.length === 1 ? "," : ""})`; }

  /** Evaluates every phase and home, and counts the slices of every digit. */
  readDigits() {
    const sweep = this.places.flatMap((place) => range(this.steps).flatMap((t) => this.within(place, t)));
    const homePlaces = this.places.flatMap((place) => this.within(place, -1));
    /** @type {Record<string, Record<string, (number | null)[]>[]>} phase or tensor -> digits at each place */
    const digits = {};
    for (const phase of PHASES) digits[phase] = this.digitsOf(phase, this.map.phases[phase], sweep);
    for (const [tensor, slices] of Object.entries(this.map.homes ?? {})) {
      digits[tensor] = this.digitsOf(`home of ${tensor}`, slices, homePlaces);
    }
    /** @type {Record<string, number[]>} */
    this.radices = {};
    for (const row of Object.values(digits).flat()) {
      for (const [dim, index] of Object.entries(row)) {
        const radices = (this.radices[dim] ??= []);
        index.forEach((digit, i) => (radices[i] = Math.max(radices[i] ?? 1, (digit ?? 0) + 1)));
      }
    }
    /** @type {Record<string, number>} */
    this.grid = {};
    for (const dim of DIMS) {
      if (dim !== "B" || dim in this.radices) this.grid[dim] = (this.radices[dim] ?? []).reduce((a, b) => a * b, 1);
    }
    this.dims = Object.keys(this.grid);
    /** @type {Record<string, Record<string, number[]>[]>} */
    this.slices = Object.fromEntries(Object.entries(digits).map(([key, rows]) => [key, this.together(key, rows.map((row) => this.flat(row)))]));
  }

  /** The values of all axes on a device: several where an axis is virtual, whose places share it.
   * @param {number[]} device
   * @param {number} t */
  within(device, t) {
    const along = new Map(this.axes.map((axis, i) => [axis, [device[i]]]));
    return product(Object.entries(this.map.axes).map(([axis, side]) => along.get(axis) ?? range(this.along[side])))
      .map((place) => ({ place, t }));
  }

  /** The slices of every device: those of all its places, which differ in one dim for each virtual axis.
   * @param {string} key a phase, or the tensor of a home
   * @param {Record<string, number[]>[]} parts */
  together(key, parts) {
    const count = parts.length / (this.ranks * (key in PRODUCTS ? this.steps : 1));
    return count === 1 ? parts : range(parts.length / count).map((i) => Object.fromEntries(this.dims.map((dim) =>
      [dim, sorted(new Set(parts.slice(i * count, (i + 1) * count).flatMap((part) => part[dim])))])));
  }

  /** @param {string} what @param {SliceTexts} slices @param {{place: number[], t: number}[]} places */
  digitsOf(what, slices, places) {
    /** @type {Record<string, Values>} */
    const values = { t: places.map(({ t }) => t) };
    const axes = Object.keys(this.map.axes);
    axes.forEach((axis, i) => (values[axis] = places.map(({ place }) => place[i])));
    /** @type {Record<string, (number | null)[]>[]} */
    const rows = places.map(() => ({}));
    for (const [dim, index] of Object.entries(slices)) {
      for (const node of index) {
        const column = node === null ? null : this.valueOf(what, node, values);
        places.forEach(({ place, t }, i) => {
          const digit = Array.isArray(column) ? column[i] : column;
          if (digit !== null && !(digit >= 0 && digit < MOST_SLICES)) {
            const at = axes.map((axis, k) => `${axis}=${place[k]}`).concat(t < 0 ? [] : [`t=${t}`]);
            const bound = digit >= MOST_SLICES ? `below ${MOST_SLICES}` : "that is 0 or more";
            throw new MapError(`${what}: expected a slice index of ${dim} ${bound}, got ${digit} at ` +
              `${at.join(", ") || "the device"}, sides ${this.sidesText}: wrap it with % of the side`);
          }
          (rows[i][dim] ??= []).push(digit);
        });
      }
    }
    return rows;
  }

  /** Dim -> the slices of a row of digits, counted through; all where a digit is left open.
   * @param {Record<string, (number | null)[]>} row */
  flat(row) {
    return Object.fromEntries(this.dims.map((dim) => [dim, this.once(`${dim} ${row[dim]}`, () =>
      (this.radices?.[dim] ?? []).reduce((/** @type {number[]} */ flat, radix, i) => {
        const digit = row[dim]?.[i] ?? null;
        return flat.flatMap((head) => (digit === null ? range(radix) : [digit]).map((value) => head * radix + value));
      }, [0]))]));
  }

  tensorDims(/** @type {string} */ tensor) { return TENSOR_DIMS[base(tensor)].filter((dim) => dim in this.grid); }

  /** What some slices are in some dims, each counted through.
   * @param {string[]} dims
   * @param {Record<string, number[]>} slices */
  cells(dims, slices) {
    return dims.reduce((/** @type {number[]} */ heads, dim) => {
      const cells = [], size = this.grid[dim]; // loops, as most of a keystroke is spent here
      for (const head of heads) for (const slice of slices[dim]) cells.push(head * size + slice);
      return cells;
    }, [0]);
  }

  /** The index in each of some dims of one that is counted through.
   * @param {string[]} dims
   * @param {number} cell */
  indices(dims, cell) {
    return dims.map((_, i) => Math.floor(cell / dims.slice(i + 1).reduce((all, dim) => all * this.grid[dim], 1)) % this.grid[dims[i]]);
  }

  /** The name of a block, `I[0,1]`. @param {string} tensor @param {number} block */
  blockName(tensor, block) { return `${tensor}[${this.indices(this.tensorDims(tensor), block).join()}]`; }

  /** The blocks of a tensor that some slices are.
   * @param {string} tensor
   * @param {Record<string, number[]>} slices
   * @returns {Set<number>} */
  blocks(tensor, slices) { return new Set(this.cells(this.tensorDims(tensor), slices)); }

  /** @template T
   * @param {string} key
   * @param {() => T} make
   * @returns {T} */
  once(key, make) {
    if (!this.known.has(key)) this.known.set(key, make());
    return this.known.get(key);
  }

  /** The slices of a rank at a step of a phase.
   * @param {string} phase
   * @param {number} rank
   * @param {number} step */
  at(phase, rank, step) { return this.slices[phase][rank * this.steps + step]; }

  /** What the map gives to every rank at a step.
   * @param {string} phase
   * @param {string} tensor
   * @param {number} step
   * @returns {Set<number>[]} */
  held(phase, tensor, step) {
    return this.once(`${phase} ${tensor} ${step}`, () =>
      range(this.ranks).map((rank) => this.blocks(tensor, this.at(phase, rank, step))));
  }

  /** @param {string} tensor @returns {Set<number>[]} */
  home(tensor) {
    return this.once(`home ${tensor}`, () => range(this.ranks).map((rank) =>
      this.hasHomes ? this.blocks(tensor, this.slices[base(tensor)][rank]) : new Set()));
  }

  /** Blocks that every rank holds all through a phase: at home, or kept from forward.
   * @param {string} phase
   * @param {string} tensor */
  resident(phase, tensor) {
    const home = this.home(tensor);
    if (phase === "forward" || !this.map.keeps.includes(tensor) || !PRODUCTS.forward.reads.includes(tensor)) return home;
    return this.once(`kept ${tensor}`, () => range(this.steps).reduce((kept, step) => both(kept, this.held("forward", tensor, step)), home));
  }

  /** Where an operand is before a phase. @param {string} phase @param {string} tensor */
  start(phase, tensor) {
    return this.hasHomes ? this.resident(phase, tensor) : this.held(phase, tensor, 0);
  }

  /** Where a tensor is after a phase.
   * @param {string} phase
   * @param {string} tensor
   * @returns {Set<number>[]} */
  end(phase, tensor) {
    if (this.hasHomes) return this.home(tensor);
    if (tensor !== PRODUCTS[phase].writes) return this.held(phase, tensor, this.steps - 1);
    /** @type {Set<number>[]} */
    const left = range(this.ranks).map(() => new Set());
    for (const sum of this.moves(phase).returns.flat()) {
      for (const [home] of sum.parts) left[home].add(sum.block);
    }
    return left;
  }

  /** @param {string} phase @returns {PhaseMoves} */
  moves(phase) {
    return this.once(`moves ${phase}`, () => {
      const { reads, writes } = PRODUCTS[phase];
      const prologue = !this.hasHomes ? [] : reads.flatMap((tensor) =>
        this.hops(tensor, this.resident(phase, tensor), this.held(phase, tensor, 0)));
      const operands = range(this.steps).map((t) => reads.flatMap((tensor) => this.operandHops(phase, tensor, t)));
      return { prologue, operands, ...this.sums(phase, writes) };
    });
  }

  /** @param {string} phase @param {string} tensor @param {number} t */
  operandHops(phase, tensor, t) {
    const here = this.held(phase, tensor, t);
    if (t + 1 < this.steps) {
      return this.hops(tensor, both(here, this.resident(phase, tensor)), this.held(phase, tensor, t + 1));
    }
    const use = NEXT_USE.find(([before, operand]) => before === phase && operand === tensor);
    if (!use || this.hasHomes) return [];
    const needed = this.start(use[2], tensor), hops = this.hops(tensor, here, needed);
    const missing = less(needed, here).reduce((sum, blocks) => sum + blocks.size, 0);
    return hops.length === missing ? hops : [];
  }

  /** A hop for every missing block that some device holds.
   * @param {string} tensor
   * @param {Set<number>[]} here
   * @param {Set<number>[]} needed
   * @returns {Hop[]} */
  hops(tensor, here, needed) {
    const missing = less(needed, here);
    if (!missing.some((blocks) => blocks.size)) return [];
    const working = holders(less(here, this.home(tensor))), atHome = holders(this.home(tensor));
    return missing.flatMap((blocks, target) => sorted(blocks).flatMap((block) => {
      const sources = working.get(block) ?? atHome.get(block);
      return sources ? [{ tensor, block, source: this.nearest(target, sources), target }] : [];
    }));
  }

  /** The rank that is fewest axes away, then the shortest way round, then in one direction.
   * @param {number} target
   * @param {Set<number>} ranks */
  nearest(target, ranks) {
    if (ranks.size === 1) return [...ranks][0];
    const here = this.places[target];
    for (const offset of this.offsets()) {
      const rank = this.rankAt.get(here.map((at, i) => (at + offset[i]) % this.lengths[i]).join());
      if (rank !== undefined && ranks.has(rank)) return rank;
    }
    throw new Error("no rank");
  }

  offsets() {
    return this.once("offsets", () => product(this.lengths.map(range)).map((offset) => {
      const around = offset.reduce((sum, step, i) => sum + Math.min(step, this.lengths[i] - step), 0);
      return [offset.filter((step) => step).length, around, ...offset];
    }).sort(compareLists).map((key) => key.slice(2)));
  }

  /** Follows the partial sums of an output: how they travel, and where they are finished.
   * @param {string} phase
   * @param {string} tensor
   * @returns {{partials: Hop[][], returns: Finished[][]}} */
  sums(phase, tensor) {
    const home = this.home(tensor), atHome = holders(home);
    /** @type {Map<number, number>} */
    const last = new Map();
    for (const t of range(this.steps)) for (const blocks of this.held(phase, tensor, t)) for (const block of blocks) last.set(block, t);
    /** @type {Map<number, Set<number>>} */
    const ranksOf = new Map();
    /** @type {Hop[][]} */
    const partials = [];
    /** @type {Finished[][]} */
    const returns = [];
    for (const t of range(this.steps)) {
      const now = this.held(phase, tensor, t), hops = this.partialHops(tensor, ranksOf, now, home);
      partials.push(hops);
      for (const hop of hops) ranksOf.get(hop.block)?.delete(hop.source);
      now.forEach((blocks, rank) => blocks.forEach((block) => ranksOf.set(block, (ranksOf.get(block) ?? new Set()).add(rank))));
      const finished = sorted([...ranksOf.keys()].filter((block) => last.get(block) === t));
      returns.push(finished.map((block) => {
        const ranks = ranksOf.get(block) ?? new Set();
        ranksOf.delete(block);
        const homes = this.hasHomes ? atHome.get(block) ?? new Set() : ranks;
        /** @type {Map<number, number[]>} */
        const parts = new Map();
        for (const one of sorted(homes)) parts.set(one, []);
        if (homes.size) for (const rank of sorted(ranks)) parts.get(this.nearest(rank, homes))?.push(rank);
        return { tensor, block, parts: [...parts] };
      }));
    }
    return { partials, returns };
  }

  /** Partial sums that move on before a step; one that is at its home stays there.
   * @param {string} tensor
   * @param {Map<number, Set<number>>} ranksOf
   * @param {Set<number>[]} now
   * @param {Set<number>[]} home */
  partialHops(tensor, ranksOf, now, home) {
    const leaving = new Map([...ranksOf].map(([block, ranks]) =>
      [block, new Set([...ranks].filter((rank) => !now[rank].has(block) && !home[rank].has(block)))]));
    /** @type {Hop[]} */
    const hops = [];
    now.forEach((blocks, target) => {
      for (const block of sorted(blocks)) {
        const sources = leaving.get(block);
        if (!sources?.size || ranksOf.get(block)?.has(target)) continue;
        const source = this.nearest(target, sources);
        sources.delete(source);
        hops.push({ tensor, block, source, target });
      }
    });
    return hops;
  }
}

/** @param {Set<number>[]} one @param {Set<number>[]} other */
const both = (one, other) => one.map((blocks, rank) => new Set([...blocks, ...other[rank]]));
/** @param {Set<number>[]} one @param {Set<number>[]} other */
const less = (one, other) => one.map((blocks, rank) => new Set([...blocks].filter((block) => !other[rank].has(block))));
/** @param {Iterable<number>} values */
const sorted = (values) => [...values].sort((a, b) => a - b);
/** @param {number[]} a @param {number[]} b */
const compareLists = (a, b) => a.map((value, i) => value - b[i]).find((difference) => difference) ?? 0;

/** The ranks of every block. @param {Set<number>[]} holdings */
function holders(holdings) {
  /** @type {Map<number, Set<number>>} */
  const ranksOf = new Map();
  holdings.forEach((blocks, rank) => blocks.forEach((block) => ranksOf.set(block, (ranksOf.get(block) ?? new Set()).add(rank))));
  return ranksOf;
}
