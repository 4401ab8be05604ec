// What is wrong with a map on a mesh, in the sentences of primepar/schedule/words.py.

/** A device as messages name it, `device 2 (r=1, c=0) at t=1`.
 * @param {MeshMap} mesh
 * @param {number} rank
 * @param {number | null} step */
function deviceText(mesh, rank, step) {
  const place = mesh.axes.map((axis, i) => `${axis}=${mesh.places[rank][i]}`).join(", ");
  return `device ${rank}${place ? ` (${place})` : ""}${step === null ? "" : ` at t=${step}`}`;
}

/** @param {MeshMap} mesh */
function meshText(mesh) {
  const sides = mesh.map.sides.map((name, i) => `${name}=${mesh.sides[i]}`).join(", ") || "any side";
  const many = mesh.lengths.some((length) => length > 1);
  return `${sides} (${mesh.lengths.join("x") || "1"} device${many ? "s" : ""})`;
}

/** @param {MeshMap} mesh @returns {Fault | null} */
function coverageFault(mesh) {
  const count = Object.values(mesh.grid).reduce((a, b) => a * b, 1);
  for (const phase of PHASES) {
    /** @type {Map<number, [number, number]>} */
    const places = new Map();
    const text = (/** @type {number} */ cell) => {
      const index = mesh.indices(mesh.dims, cell).map((slice, i) => `${mesh.dims[i]}=${slice}`).join(", ");
      return `${phase} sub-operator (${index}): expected one device to compute`;
    };
    for (let rank = 0; rank < mesh.ranks; rank++) {
      for (let step = 0; step < mesh.steps; step++) {
        for (const cell of mesh.cells(mesh.dims, mesh.at(phase, rank, step))) {
          const before = places.get(cell);
          if (before) {
            const where = [before, [rank, step]].map(([at, t]) => deviceText(mesh, at, t)).join(" and ");
            return fault("coverage", mesh, `${text(cell)} it once, got ${where}: give one of them another`, [before[0], rank], [], phase, step);
          }
          places.set(cell, [rank, step]);
        }
      }
    }
    for (let cell = 0; places.size < count && cell < count; cell++) {
      if (!places.has(cell)) {
        return fault("coverage", mesh, `${text(cell)} it, got none: only ${places.size} of ${count} are computed`, [], [], phase, 0);
      }
    }
  }
  return null;
}

/** @param {string} property
 * @param {MeshMap} mesh
 * @param {string} text
 * @param {number[]} ranks
 * @param {string[]} blocks
 * @param {string} [phase]
 * @param {number} [step]
 * @returns {Fault} */
function fault(property, mesh, text, ranks, blocks, phase, step) {
  return { property, sentence: `${meshText(mesh)}: ${text}`, ranks, blocks, phase, step };
}

const homeFix = (/** @type {string} */ tensor) => `let the home of ${tensor} assign it to`;
const firstOf = (/** @type {Set<number>} */ blocks) => Math.min(...blocks);
/** @param {Set<number>[]} sets @returns {Set<number>} */
const union = (sets) => new Set(function* () { for (const set of sets) yield* set; }());

/** @param {MeshMap} mesh @returns {Fault | null} */
function placementFault(mesh) {
  for (const phase of PHASES) {
    for (let step = mesh.hasHomes ? 0 : 1; step < mesh.steps; step++) {
      for (const tensor of PRODUCTS[phase].reads) {
        const before = step ? mesh.held(phase, tensor, step - 1) : [];
        const available = union(mesh.hasHomes ? [...before, ...mesh.resident(phase, tensor)] : before);
        for (const [rank, needed] of mesh.held(phase, tensor, step).entries()) {
          const missing = new Set([...needed].filter((block) => !available.has(block)));
          if (!missing.size) continue;
          const block = mesh.blockName(tensor, firstOf(missing));
          const where = `${phase}, ${deviceText(mesh, rank, step)}: expected ${block} to be`;
          const text = mesh.hasHomes
            ? `${where} resident on some device, got it on none: ${homeFix(base(tensor))} one`
            : `${where} on some device at t=${step - 1}, got it on none: let a device use it at t=${step - 1}`;
          return fault("placement", mesh, text, [rank], [block], phase, step);
        }
      }
    }
  }
  return null;
}

/** @param {MeshMap} mesh @returns {Fault | null} */
function completionFault(mesh) {
  for (const phase of mesh.hasHomes ? PHASES : []) {
    const output = PRODUCTS[phase].writes, homes = union(mesh.home(output));
    for (let step = 0; step < mesh.steps; step++) {
      for (let rank = 0; rank < mesh.ranks; rank++) {
        const lost = new Set([...mesh.held(phase, output, step)[rank]].filter((block) => !homes.has(block)));
        if (!lost.size) continue;
        const block = mesh.blockName(output, firstOf(lost));
        return fault("completion", mesh, `${phase}, ${deviceText(mesh, rank, step)}: expected the sum ${block} to ` +
          `have a home, got none: ${homeFix(base(output))} some device`, [rank], [block], phase, step);
      }
    }
  }
  return null;
}

/** @param {MeshMap} mesh @returns {Fault | null} */
function alignmentFault(mesh) {
  if (mesh.hasHomes) {
    for (const tensor of ["I", "W", "O"]) {
      const homes = union(mesh.home(tensor));
      const count = mesh.tensorDims(tensor).reduce((all, dim) => all * mesh.grid[dim], 1);
      for (let block = 0; block < count; block++) {
        if (homes.has(block)) continue;
        const name = mesh.blockName(tensor, block);
        return fault("alignment", mesh, `home of ${tensor}: expected ${name} to be resident on some device, got it ` +
          `on none: only ${homes.size} of ${count} blocks are resident`, [], [name]);
      }
    }
    return null;
  }
  const pairs = [...NEXT_USE.map(([phase, tensor, then]) => [phase, tensor, then, tensor]),
    ["forward", "O", "backward", "dO"], ["gradient", "dW", "forward", "W"]];
  for (const [phase, tensor, then, nextTensor] of pairs) {
    const arrived = mesh.end(phase, tensor).map((blocks) => new Set(blocks));
    for (const hop of mesh.moves(phase).operands[mesh.steps - 1]) {
      if (hop.tensor === tensor) arrived[hop.target].add(hop.block);
    }
    for (const [rank, needed] of mesh.start(then, nextTensor).entries()) {
      const missing = new Set([...needed].filter((block) => !arrived[rank].has(block)));
      if (!missing.size) continue;
      const block = mesh.blockName(nextTensor, firstOf(missing));
      const got = sorted(arrived[rank]).map((one) => mesh.blockName(tensor, one)).join(" ") || "another block";
      const hop = nextTensor === tensor ? ", or one hop away" : "";
      return fault("alignment", mesh, `${then} starts on ${deviceText(mesh, rank, null)}: expected ${block} here, got ` +
        `${got} from ${phase}: end ${phase} where ${then} starts${hop}`, [rank], [block], then, 0);
    }
  }
  return null;
}

/** In the order in which the command prints the properties.
 * @type {Record<string, (mesh: MeshMap) => Fault | null>} */
const FAULTS = { coverage: coverageFault, placement: placementFault, completion: completionFault, alignment: alignmentFault };

/** The meshes of a map that are searched, fewest devices first.
 * @param {ParsedMap} map
 * @returns {number[][]} */
function sideChoices(map) {
  const devices = (/** @type {number[]} */ sides) => Object.values(map.axes)
    .reduce((all, side) => all * sides[map.sides.indexOf(side)], 1);
  return product(map.sides.map(() => range(LONGEST_SIDE).map((side) => side + 1)))
    .filter((sides) => devices(sides) <= MOST_DEVICES)
    .sort((a, b) => devices(a) - devices(b) || compareLists(a, b));
}

/** The fault of each property on the first mesh that has one. Raises `MapError` where the map gives no
 * slices.
 * @param {ParsedMap} map
 * @returns {{faults: (Fault & {sides: number[]})[], meshes: number}} */
function smallestFaults(map) {
  /** @type {(Fault & {sides: number[]})[]} */
  const faults = [];
  let meshes = 0;
  for (const sides of sideChoices(map)) {
    const along = Object.fromEntries(map.sides.map((name, i) => [name, sides[i]]));
    const devices = Object.values(map.axes).reduce((all, side) => all * along[side], 1);
    const ranks = Object.keys(map.axes).filter((axis) => !map.virtual.includes(axis)).reduce((all, axis) => all * along[map.axes[axis]], 1);
    if (faults.length && ranks > MOST_DEVICES_AFTER) break;
    const steps = Number(evaluate(map.steps, along));
    if (!(steps >= 1 && steps <= Math.floor(MOST_PLACES / devices))) continue;
    const mesh = new MeshMap(map, sides);
    const isLarge = Object.values(mesh.grid).reduce((a, b) => a * b, 1) > MOST_SUB_OPERATORS;
    meshes += 1;
    for (const [name, search] of Object.entries(FAULTS)) {
      if (faults.some((known) => known.property === name) || (isLarge && name !== "coverage")) continue;
      const wrong = search(mesh);
      if (wrong) faults.push({ ...wrong, sides });
    }
  }
  return { faults, meshes };
}
