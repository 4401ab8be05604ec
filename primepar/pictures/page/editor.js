// The map as text: three lines and, if there are any, the homes. At each keystroke all meshes up to
// side 6 are checked.

// A target has a packed run for each mesh, by its sides as `2,2`. Only a map has axes and what follows.
/** @typedef {Record<string, Record<string, string[]>>} Lines */
/** @typedef {{name: string, label: string, about: string, runs: Record<string, string>, facts?: Record<string, string>, axes?: Record<string, string>, steps?: string, phases?: Lines, homes?: Lines, keeps?: string[], virtual?: string[]}} Target */
/** @typedef {{map: ParsedMap | null, fault: (Fault & {sides: number[]}) | null, text: string, isRight: boolean, milliseconds: number}} Verdict */

/** One line for each phase or home, `M=r, N=(r + c + t) % s, K=c`.
 * @param {Record<string, Record<string, string[]>>} part */
function lines(part) {
  return Object.fromEntries(Object.entries(part).map(([key, slices]) => [key, Object.entries(slices)
    .map(([dim, digits]) => `${dim}=${digits.length === 1 ? digits[0] : `(${digits.join(", ")})`}`).join(", ")]));
}

/** @param {Target} target @returns {MapSource} */
function sourceOf(target) {
  return {
    axes: target.axes ?? {}, steps: target.steps ?? "s", phases: lines(target.phases ?? {}),
    homes: lines(target.homes ?? {}), keeps: target.keeps ?? [], virtual: target.virtual ?? [],
  };
}

/** @param {MapSource} source @returns {Verdict} */
function judge(source) {
  const start = performance.now();
  try {
    const map = parseMap(source), { faults, meshes } = smallestFaults(map);
    const milliseconds = performance.now() - start;
    const [fault] = faults;
    if (fault) return { map, fault, text: `${fault.property} is refuted: ${fault.sentence}`, isRight: false, milliseconds };
    const text = `Right on all ${meshes} meshes up to side ${LONGEST_SIDE}: every sub-operator once, every block in its place.`;
    return { map, fault: null, text, isRight: true, milliseconds };
  } catch (error) {
    if (!(error instanceof MapError)) throw error;
    return { map: null, fault: null, text: error.message, isRight: false, milliseconds: performance.now() - start };
  }
}

class Editor {
  /** @param {HTMLElement} host
   * @param {(source: MapSource, verdict: Verdict, isEdited: boolean) => void} changed */
  constructor(host, changed) {
    this.host = host;
    this.changed = changed;
  }

  /** @param {Target} target */
  show(target) {
    this.original = sourceOf(target);
    /** @type {Record<string, HTMLInputElement>} */
    this.fields = {};
    const field = (/** @type {string} */ key, /** @type {string} */ label, /** @type {string} */ text) => {
      const input = /** @type {HTMLInputElement} */ (html("input", {
        id: `map-${key}`, value: text, spellcheck: "false", autocomplete: "off", autocapitalize: "off",
      }));
      input.addEventListener("input", () => this.read());
      this.fields[key] = input;
      return html("div", { class: "field" }, html("label", { for: `map-${key}` }, label), input);
    };
    const phases = PHASES.map((phase) => field(phase, phase, this.original.phases[phase]));
    const rest = [field("steps", "steps", this.original.steps), ...Object.entries(this.original.homes)
      .map(([tensor, text]) => field(`home-${tensor}`, `home of ${tensor}`, text))];
    const names = Object.entries(this.original.axes).map(([axis, side]) => `${axis} of side ${side}`).join(", ");
    const reset = html("button", { type: "button", class: "quiet" }, "Put it back");
    reset.addEventListener("click", () => this.show(target));
    this.resetButton = reset;
    this.verdict = html("p", { class: "verdict", role: "status" });
    this.host.replaceChildren(
      html("p", { class: "hint" }, `Device axes: ${names}. t is the step. Write +, -, *, //, %, comparisons, &, |, ~ and where(condition, a, b).`),
      ...phases, html("details", { open: Object.keys(this.original.homes).length > 0 }, html("summary", {}, "Steps and homes"), ...rest),
      html("div", { class: "under" }, this.verdict, reset));
    this.read();
  }

  /** @returns {MapSource} */
  get source() {
    const { original, fields } = this;
    if (!original || !fields) throw new Error("no map is shown");
    return {
      axes: original.axes, steps: fields.steps.value,
      phases: Object.fromEntries(PHASES.map((phase) => [phase, fields[phase].value])),
      homes: Object.fromEntries(Object.keys(original.homes).map((tensor) => [tensor, fields[`home-${tensor}`].value])),
      keeps: original.keeps, virtual: original.virtual,
    };
  }

  read() {
    const { source, verdict } = this, judged = judge(source), isEdited = JSON.stringify(source) !== JSON.stringify(this.original);
    if (!verdict) return;
    verdict.className = `verdict ${judged.isRight ? "right" : judged.map ? "wrong" : "unread"}`;
    verdict.textContent = judged.text;
    verdict.dataset.milliseconds = judged.milliseconds.toFixed(1);
    this.isEdited = isEdited;
    this.resetButton?.toggleAttribute("disabled", !isEdited);
    this.changed(source, judged, isEdited);
  }
}
