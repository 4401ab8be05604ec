// "Prove it here": the map as a Python file, and the project's own prover of it in a worker. Where
// the page has no prover next to it, it shows the command.

/** The file `mine.py` that a map is: what the prover and the command read. @param {MapSource} source */
function pythonOf(source) {
  const sides = [...new Set(Object.values(source.axes))], axes = Object.keys(source.axes);
  const names = [...axes, "t", ...sides].join(", ");
  const dict = (/** @type {string} */ slices) => `dict(${slices.replace(/([(,]\s*)\*(?=\s*[,)])/g, "$1ANY")})`;
  const isPlain = sides.length === 1 && sides[0] === "s";
  const written = isPlain ? `(${axes.map((axis) => `"${axis}",`).join(" ")})` : JSON.stringify(source.axes);
  const methods = PHASES.filter((phase) => phase === "forward" || source.phases[phase] !== source.phases.forward)
    .map((phase) => `    def ${phase}(self, ${names}):\n        return ${dict(source.phases[phase])}\n`);
  const homes = Object.entries(source.homes).map(([tensor, slices]) => `            "${tensor}": ${dict(slices)},\n`);
  return [
    "from primepar import ANY, Primitive, where\n\n\nclass Mine(Primitive):\n", `    axes = ${written}\n`,
    ...(source.virtual.length ? [`    virtual = (${source.virtual.map((axis) => `"${axis}",`).join(" ")})\n`] : []),
    ...(source.keeps.length ? [`    keeps = (${source.keeps.map((tensor) => `"${tensor}",`).join(" ")})\n`] : []),
    ...(source.steps === sides[0] ? [] : [`\n    def steps(self, ${sides.join(", ")}):\n        return ${source.steps}\n`]),
    ...methods.map((method) => `\n${method}`),
    ...(homes.length ? [`\n    def home(self, tensor, ${[...axes, ...sides].join(", ")}):\n        return {\n`, ...homes, "        }[tensor]\n"] : []),
  ].join("");
}

class Prover {
  /** @param {HTMLElement} host @param {string | undefined} folder where the worker is served */
  constructor(host, folder) {
    this.folder = location.protocol.startsWith("http") ? folder : undefined;
    /** @type {Worker | undefined} */
    this.worker = undefined;
    this.button = html("button", { type: "button", class: "main" }, "Prove it here, for every side");
    this.report = html("pre", { role: "status", hidden: true });
    this.button.addEventListener("click", () => this.prove());
    host.replaceChildren(this.button, this.report);
  }

  /** @param {MapSource} source */
  show(source) {
    this.source = source;
    this.report.hidden = true;
  }

  /** @param {string} text */
  print(text) {
    this.report.hidden = false;
    this.report.textContent = text;
  }

  /** Asks the worker, which loads when it is first asked.
   * @param {{map?: string, program?: string}} task
   * @param {(progress: string) => void} progress
   * @returns {Promise<any>} */
  ask(task, progress) {
    const worker = (this.worker ??= new Worker(`${this.folder}/prover_worker.js`, { type: "module" })), { port1, port2 } = new MessageChannel();
    return new Promise((resolve, reject) => {
      port1.onmessage = ({ data }) => (data.progress ? progress(data.progress) : resolve(data));
      worker.addEventListener("error", reject);
      worker.postMessage(task, [port2]);
    });
  }

  async prove() {
    const { source } = this;
    if (!source) return;
    const command = `Save the map as mine.py, and run\n\n    primepar verify mine.py:Mine\n\n${pythonOf(source)}`;
    if (!this.folder) return this.print(`This page has no prover next to it. ${command}`);
    const start = performance.now();
    this.button.toggleAttribute("disabled", true);
    const { verdict, report } = await this.ask({ map: pythonOf(source) }, (text) => this.print(text))
      .catch(() => ({ verdict: "unknown", report: `The prover did not load. ${command}` }));
    this.button.toggleAttribute("disabled", false);
    this.report.dataset.verdict = verdict;
    this.report.dataset.milliseconds = (performance.now() - start).toFixed(0);
    this.print(report);
  }
}
