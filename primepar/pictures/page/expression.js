// The small language of maps, as in primepar/schedule/expression.py: names, whole numbers,
// + - * // %, comparisons, ~ & | and where(condition, a, b), with Python's precedence.
//
// An expression is evaluated once for all places of a mesh: every name is an array with a value for
// each place, or one number for all.

/** @typedef {{op: string, parts: Expr[], value?: number, name?: string}} Expr */
/** @typedef {number | number[]} Values */

/** What is wrong with a text or a map, in a sentence for the reader. */
class MapError extends Error {}

/** Operator -> how tightly it binds; comparisons least, as in Python. @type {Record<string, number>} */
const LEVELS = {
  "==": 0, "!=": 0, "<": 0, "<=": 0, ">": 0, ">=": 0, "|": 1, "&": 2, "+": 3, "-": 3,
  "*": 4, "//": 4, "%": 4,
};
const COMPARISONS = new Set(["==", "!=", "<", "<=", ">", ">="]);
const LOGIC = new Set(["&", "|", "~", ...COMPARISONS]);
const TOKEN = /\s*(?:(\d+)|([A-Za-z_]\w*)|(\/\/|==|!=|<=|>=|[-+*%<>&|~(),=])|(\S))/y;

/** @param {string} text @returns {{kind: string, text: string}[]} */
function tokens(text) {
  const list = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const match = TOKEN.exec(text);
    if (!match) break;
    const [, number, name, sign, other] = match;
    if (other) throw new MapError(`expected +, -, *, //, %, comparisons or where, got ${other}`);
    list.push(number ? { kind: "number", text: number } : name ? { kind: "name", text: name } : { kind: "sign", text: sign });
  }
  return list;
}

/** Reads expressions and slices from one text. */
class Reader {
  /** @param {string} text @param {string[]} names that may be used */
  constructor(text, names) {
    this.tokens = tokens(text);
    this.names = names;
    this.place = 0;
  }

  /** @returns {string | undefined} */
  get next() { return this.tokens[this.place]?.text; }

  is(/** @type {string} */ text) { return this.next === text; }

  take(/** @type {string} */ text) {
    if (this.next !== text) {
      throw new MapError(`expected ${text}, got ${this.next ?? "the end of the line"}`);
    }
    this.place += 1;
  }

  /** @returns {Expr} */
  expression(level = 0) {
    let left = this.operand();
    while (this.next in LEVELS && LEVELS[this.next] >= level) {
      const op = this.next;
      this.place += 1;
      const right = this.expression(LEVELS[op] + 1);
      if (COMPARISONS.has(op) && COMPARISONS.has(left.op)) {
        throw new MapError("expected one comparison, got two in a row: join them with &");
      }
      const isLogic = op === "&" || op === "|";
      for (const part of [left, right]) {
        if (LOGIC.has(part.op) !== isLogic) {
          throw new MapError(isLogic ? `expected conditions around ${op}, got a number`
            : "expected a number, got a comparison: write where(condition, 1, 0)");
        }
      }
      left = { op, parts: [left, right] };
    }
    return left;
  }

  /** @returns {Expr} */
  operand() {
    const token = this.tokens[this.place];
    if (!token) throw new MapError("expected a number or a name, got the end of the line");
    this.place += 1;
    if (token.kind === "number") {
      const value = Number(token.text);
      if (!Number.isSafeInteger(value)) throw new MapError(`expected numbers below 2**53, got ${token.text}`);
      return { op: "number", parts: [], value };
    }
    if (token.text === "(") {
      const inner = this.expression();
      this.take(")");
      return inner;
    }
    if (token.text === "-" || token.text === "~") {
      const part = this.operand();
      if (LOGIC.has(part.op) !== (token.text === "~")) {
        throw new MapError(`expected ${token.text === "~" ? "a condition" : "a number"} after ${token.text}`);
      }
      return { op: token.text === "-" ? "neg" : "~", parts: [part] };
    }
    if (token.kind !== "name") throw new MapError(`expected a number or a name, got ${token.text}`);
    if (token.text === "where") return this.where();
    if (!this.names.includes(token.text)) {
      throw new MapError(`expected names out of ${this.names.join(", ")}, got ${token.text}`);
    }
    return { op: "name", parts: [], name: token.text };
  }

  /** @returns {Expr} */
  where() {
    this.take("(");
    const condition = this.expression();
    this.take(",");
    const then = this.expression();
    this.take(",");
    const otherwise = this.expression();
    this.take(")");
    if (!LOGIC.has(condition.op)) throw new MapError("expected where(condition, a, b), got no condition");
    return { op: "where", parts: [condition, then, otherwise] };
  }

  /** @returns {(Expr | null)[]} the digits of an index; null for one that is left open, `*` */
  index() {
    if (!this.isTuple()) return [this.digit()];
    this.take("(");
    const digits = [this.digit()];
    while (this.is(",")) {
      this.take(",");
      if (!this.is(")")) digits.push(this.digit());
    }
    this.take(")");
    while (digits.length && digits[digits.length - 1] === null) digits.pop();
    return digits;
  }

  digit() {
    if (this.next === "*" || this.next === "ANY") {
      this.place += 1;
      return null;
    }
    return this.expression();
  }

  /** Whether the parenthesis here holds digits, with a comma at its own depth. */
  isTuple() {
    if (this.next !== "(") return false;
    let depth = 0;
    for (const token of this.tokens.slice(this.place)) {
      if (token.text === "(") depth += 1;
      if (token.text === ")" && --depth === 0) return false;
      if (token.text === "," && depth === 1) return true;
    }
    return false;
  }
}

/** The slices of one line, `M=r, N=(r + c + t) % s, K=c`.
 * @param {string} text
 * @param {string[]} names
 * @returns {Record<string, (Expr | null)[]>} */
function parseSlices(text, names) {
  const reader = new Reader(text, names);
  /** @type {Record<string, (Expr | null)[]>} */
  const slices = {};
  while (reader.next !== undefined) {
    const dim = reader.next;
    if (!"BMNK".includes(dim) || dim.length !== 1) {
      throw new MapError(`expected dims out of B, M, N, K, got ${dim}: write M=..., N=..., K=...`);
    }
    if (dim in slices) throw new MapError(`expected every dim once, got ${dim} twice`);
    reader.take(dim);
    reader.take("=");
    const digits = reader.index();
    if (digits.some((digit) => digit && LOGIC.has(digit.op))) {
      throw new MapError(`expected a number for ${dim}, got a comparison: write where(condition, 1, 0)`);
    }
    slices[dim] = digits;
    if (!digits.length) delete slices[dim];
    if (reader.next !== undefined) reader.take(",");
  }
  return slices;
}

/** The expression of one line, such as a number of steps. @param {string} text @param {string[]} names */
function parseNumber(text, names) {
  const reader = new Reader(text, names);
  const node = reader.expression();
  if (reader.next !== undefined) throw new MapError(`expected the end of the line, got ${reader.next}`);
  return node;
}

const floorMod = (/** @type {number} */ a, /** @type {number} */ b) => a - b * Math.floor(a / b);

/** @type {Record<string, (...parts: any[]) => number>} */
const OPERATORS = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, neg: (a) => -a,
  "//": (a, b) => Math.floor(a / b), "%": floorMod,
  "==": (a, b) => +(a === b), "!=": (a, b) => +(a !== b), "<": (a, b) => +(a < b),
  "<=": (a, b) => +(a <= b), ">": (a, b) => +(a > b), ">=": (a, b) => +(a >= b),
  "&": (a, b) => a & b, "|": (a, b) => a | b, "~": (a) => 1 - a,
  where: (condition, then, otherwise) => (condition ? then : otherwise),
};

/** @param {Expr} node @param {Record<string, Values>} values @returns {Values} */
function evaluate(node, values) {
  if (node.op === "number") return /** @type {number} */ (node.value);
  if (node.op === "name") return values[/** @type {string} */ (node.name)];
  const parts = node.parts.map((part) => evaluate(part, values));
  if (node.op === "%" || node.op === "//") {
    const divisor = parts[1];
    const least = Array.isArray(divisor) ? divisor.reduce((a, b) => Math.min(a, b), 1) : divisor;
    if (least < 1) throw new MapError(`expected % and // by 1 or more, got ${least}: use the length of a side`);
  }
  const apply = OPERATORS[node.op];
  const columns = parts.filter((part) => Array.isArray(part));
  if (!columns.length) return apply(...parts);
  const length = /** @type {number[]} */ (columns[0]).length;
  const result = new Array(length);
  for (let i = 0; i < length; i++) {
    result[i] = apply(...parts.map((part) => (Array.isArray(part) ? part[i] : part)));
  }
  return result;
}
