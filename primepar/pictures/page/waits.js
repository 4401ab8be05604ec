// A small judge of waits: which sends meet which receives, who waits for whom, and the cycle where
// nobody goes on. Rendezvous, no buffers, as in primepar/schedule/{matching,waits}.py.

// A line is an instruction; each of its posts is a send, recv or call, with its channel or group.
/** @typedef {{text: string, posts: [string, string][], request: string | null, awaits: string | null, reads: string[], writes: string[]}} Line */
// A puzzle that is not of waits alone has the rest of its program, and boards that the library judged;
// their places are those of instructions. One of a map has the map, a target of the page, and the lines that repair it.
/** @typedef {{name: string, title: string, story: string, hint: string, ranks: (Line & {node?: any})[][], answer: number[][], program?: any, boards?: (Judgement & {orders: number[][]})[], map?: Target, repaired?: string}} Puzzle */
/** @typedef {{rank: number, line: number, post: number}} Side */
/** @typedef {{kind: "order" | "cycle" | "refuted" | "ends" | "open", text: string, places: [number, number][]}} Judgement */

/** Whether two lines of a rank must stay in their order: one makes, or waits for, what the other uses.
 * @param {Line[]} lines
 * @param {Line} one
 * @param {Line} other */
function conflict(lines, one, other) {
  const awaited = (/** @type {Line} */ line) => lines.find((post) => line.awaits !== null && post.request === line.awaits);
  if (one.request !== null && one.request === other.awaits) return true;
  const uses = (/** @type {Line} */ line) => {
    const posted = awaited(line);
    return { reads: [...line.reads, ...(posted?.reads ?? [])], writes: [...line.writes, ...(posted?.writes ?? [])] };
  };
  const [first, second] = [uses(one), uses(other)];
  const meet = (/** @type {string[]} */ a, /** @type {string[]} */ b) => a.some((block) => b.includes(block));
  return meet(first.writes, [...second.reads, ...second.writes]) || meet(first.reads, second.writes);
}

/** @param {Puzzle} puzzle
 * @param {number[][]} orders rank -> its lines, each by its number in the puzzle
 * @returns {Judgement} */
function judgeOrders(puzzle, orders) {
  for (const [rank, order] of orders.entries()) {
    const lines = puzzle.ranks[rank];
    for (const [place, late] of order.entries()) {
      const early = order.slice(place + 1).find((other) => other < late && conflict(lines, lines[other], lines[late]));
      if (early !== undefined) {
        return {
          kind: "order", places: [[rank, early], [rank, late]],
          text: `device ${rank}: ${lines[late].text} uses what ${lines[early].text} makes or waits for: put it after that line`,
        };
      }
    }
  }
  return stuck(puzzle, orders, matched(puzzle, orders));
}

const sideKey = (/** @type {Side} */ { rank, line, post }) => `${rank} ${line} ${post}`;

/** Who meets whom: the n-th side of a channel meets the n-th of the other end.
 * @param {Puzzle} puzzle
 * @param {number[][]} orders
 * @returns {Side[][]} groups of sides that meet: in a puzzle none is left alone */
function matched(puzzle, orders) {
  /** @type {Map<string, Map<string, Side[]>>} channel -> end -> its sides in order */
  const channels = new Map();
  orders.forEach((order, rank) => order.forEach((line) => puzzle.ranks[rank][line].posts.forEach(([kind, channel], post) => {
    const ends = channels.get(channel) ?? new Map(), end = kind === "call" ? `device ${rank}` : kind;
    ends.set(end, [...(ends.get(end) ?? []), { rank, line, post }]);
    channels.set(channel, ends);
  })));
  /** @type {Side[][]} */
  const groups = [];
  for (const [channel, ends] of channels) {
    const members = channel.startsWith("{") ? channel.slice(1, channel.indexOf("}")).split(",").map((rank) => `device ${rank}`) : ["send", "recv"];
    const turns = Math.max(...[...ends.values()].map((sides) => sides.length));
    for (let turn = 0; turn < turns; turn++) {
      groups.push(/** @type {Side[]} */ (members.map((end) => ends.get(end)?.[turn]).filter(Boolean)));
    }
  }
  return groups;
}

/** Runs all devices as far as they go.
 * @param {Puzzle} puzzle
 * @param {number[][]} orders
 * @param {Side[][]} groups
 * @returns {Judgement} */
function stuck(puzzle, orders, groups) {
  /** @type {Map<string, Side[]>} */
  const met = new Map(groups.flatMap((group) => group.map((side) => [sideKey(side), group])));
  const places = orders.map(() => 0), started = new Set();
  const open = (/** @type {number} */ rank) => {
    const line = orders[rank][places[rank]], node = puzzle.ranks[rank][line];
    node.posts.forEach((_, post) => started.add(sideKey({ rank, line, post })));
    const from = node.awaits === null ? line : puzzle.ranks[rank].findIndex((other) => other.request === node.awaits);
    if (node.request !== null || from < 0) return [];
    return puzzle.ranks[rank][from].posts.flatMap((_, post) => met.get(sideKey({ rank, line: from, post })) ?? []).filter((side) => !started.has(sideKey(side)));
  };
  for (let moves = true; moves;) {
    moves = false;
    for (const rank of orders.keys()) {
      while (places[rank] < orders[rank].length && !open(rank).length) {
        places[rank] += 1;
        moves = true;
      }
    }
  }
  const hanging = [...orders.keys()].filter((rank) => places[rank] < orders[rank].length);
  if (!hanging.length) return { kind: "ends", text: "Every device reaches its end, in every order of events.", places: [] };
  const cycle = shortestCycle(new Map(hanging.map((rank) => [rank, open(rank).map((side) => side.rank)])));
  const text = cycle.map((rank, i) => `device ${rank} hangs in ${puzzle.ranks[rank][orders[rank][places[rank]]].text}, and waits for device ${cycle[(i + 1) % cycle.length]}`);
  return { kind: "cycle", text: `Nobody goes on: ${text.join("; ")}.`, places: cycle.map((rank) => [rank, orders[rank][places[rank]]]) };
}

/** The shortest cycle of a graph that has one: breadth first from each node.
 * @param {Map<number, number[]>} following */
function shortestCycle(following) {
  /** @type {number[]} */
  let best = [];
  for (const start of following.keys()) {
    /** @type {number[][]} */
    const paths = [[start]];
    const seen = new Set();
    for (const path of paths) {
      if (best.length && path.length >= best.length) break;
      for (const next of following.get(path[path.length - 1]) ?? []) {
        if (next === start) best = path;
        else if (!seen.has(next) && following.has(next)) {
          seen.add(next);
          paths.push([...path, next]);
        }
        if (best === path) break;
      }
    }
  }
  return best;
}
