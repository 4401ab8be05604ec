// The page: which method, which mesh, which tick, and what is chosen.

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

class Page {
  /** @param {{targets: Target[], first: string, prover?: string, puzzles?: string}} data */
  constructor(data) {
    this.data = data;
    this.tick = 0;
    /** @type {{rank: number, block: string | null} | null} */
    this.selected = null;
    /** @type {(Fault & {sides: number[]}) | null} */
    this.fault = null;
    const select = (/** @type {number | null} */ rank, /** @type {string | null} */ block) => this.choose(rank, block);
    this.mesh = new MeshView(byId("mesh"), select);
    this.time = new TimeView(byId("time"), (tick) => this.go(tick), select);
    this.editor = new Editor(byId("editor"), (source, verdict, isEdited) => this.mapped(source, verdict, isEdited));
    this.prover = new Prover(byId("prove"), data.prover);
    this.slider = /** @type {HTMLInputElement} */ (byId("tick"));
    this.targets = /** @type {HTMLSelectElement} */ (byId("target"));
    for (const target of data.targets) this.targets.append(html("option", { value: target.name }, target.name));
    this.targets.addEventListener("change", () => this.show(this.targets.value));
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    byId("play").addEventListener("click", () => this.play(!this.isPlaying));
    byId("back").addEventListener("click", () => this.go(this.tick - 1));
    byId("on").addEventListener("click", () => this.fly(this.tick));
    const root = document.documentElement;
    byId("theme").addEventListener("click", () => (root.dataset.theme = getComputedStyle(root).colorScheme === "dark" ? "light" : "dark"));
    byId("mesh").addEventListener("pointerleave", () => this.choose(null, null));
    this.isPlaying = false;
    root.classList.toggle("framed", window !== top);
    if (data.puzzles) unpack(data.puzzles).then((puzzles) => (this.gallery = new Gallery(byId("gallery"), puzzles, this.prover, (target) => this.show(target))));
    const wanted = decodeURIComponent(location.hash.slice(1));
    this.show(data.targets.some((target) => target.name === wanted) ? wanted : data.first);
  }

  get target() {
    const target = this.data.targets.find((one) => one.name === this.targets.value);
    if (!target) throw new Error(`no ${this.targets.value}`);
    return target;
  }

  /** @param {string} name */
  show(name) {
    this.play(false);
    this.targets.value = name;
    const { target } = this, sides = this.sideChoices(target);
    const about = byId("about");
    about.replaceChildren(target.about, ...(target.facts ? [html("dl", {}, ...Object.entries(target.facts)
      .flatMap(([what, value]) => [html("dt", {}, what), html("dd", {}, value)]))] : []));
    byId("map").hidden = !target.axes;
    this.sides = sides.find((one) => one.every((side) => side === 2)) ?? sides.at(-1) ?? [];
    [this.source, this.isEdited] = [null, false];
    if (target.axes) this.editor.show(target);
    else {
      this.fault = null;
      this.place(this.sides);
    }
  }

  /** The meshes that can be chosen: those with a run, and of one side all up to 6. @param {Target} target */
  sideChoices(target) {
    if (!target.axes) return [];
    const names = [...new Set(Object.values(target.axes))];
    const all = names.length > 1 ? Object.keys(target.runs).map((key) => key.split(",").map(Number))
      : range(LONGEST_SIDE).map((side) => [side + 1]);
    return all.filter((sides) => Object.values(target.axes ?? {}).reduce((count, side) => count * sides[names.indexOf(side)], 1) <= MOST_DEVICES);
  }

  drawSides() {
    const { target } = this, choices = this.sideChoices(target), host = byId("sides");
    const names = [...new Set(Object.values(target.axes ?? {}))];
    host.hidden = !choices.length;
    host.replaceChildren(html("span", { class: "label", id: "side-label" }, `side ${names.join()}`), html("div", { class: "choices", role: "group", "aria-labelledby": "side-label" },
      ...choices.map((sides) => {
        const button = html("button", { type: "button", "aria-pressed": String(String(sides) === String(this.sides)) }, sides.join(", "));
        button.addEventListener("click", () => this.place(sides));
        return button;
      })));
  }

  /** A map was read: draw it, where it is wrong on the mesh that shows it.
   * @param {MapSource} source
   * @param {Verdict} verdict
   * @param {boolean} isEdited */
  mapped(source, verdict, isEdited) {
    this.source = source;
    this.isEdited = isEdited;
    this.parsed = verdict.map;
    this.fault = verdict.fault;
    this.prover.show(source);
    if (verdict.isRight && isEdited) this.gallery?.solve(this.target.name);
    if (verdict.map) this.place(verdict.fault?.sides ?? this.sides);
  }

  /** Draws the target on a mesh. @param {number[]} sides */
  async place(sides) {
    this.sides = sides;
    this.drawSides();
    const packed = this.isEdited ? undefined : this.target.runs[sides.join()];
    const turn = (this.turn = (this.turn ?? 0) + 1);
    /** @type {Run} */
    let run;
    try {
      run = packed ? await unpackRun(packed) : runOfMesh(new MeshMap(/** @type {ParsedMap} */ (this.parsed), sides));
    } catch (error) {
      if (error instanceof MapError) return;
      throw error;
    }
    if (turn !== this.turn) return; // another mesh was chosen meanwhile
    const scene = new Scene(run);
    this.scene = scene;
    this.mesh.show(scene);
    this.time.show(scene, /** @type {Palette} */ (this.mesh.palette));
    this.slider.max = String(scene.last);
    byId("legend").replaceChildren(...(this.mesh.palette?.tensors ?? []).slice(0, 14).map((tensor) => {
      const block = this.mesh.palette?.blocks.get(tensor)?.[0] ?? tensor;
      return html("li", {}, html("i", { style: `--hue:${this.mesh.palette?.hue(block)};--fill:${this.mesh.palette?.fill(block)}` }), tensor);
    }));
    const { wrong } = this, at = wrong ? Math.max(0, scene.labels.indexOf(`${wrong.phase} t=${wrong.step ?? 0}`)) : Math.min(this.tick, scene.last);
    this.selected = null;
    this.drawn = this.target.name;
    this.go(at);
  }

  /** What is wrong on the mesh that is shown. */
  get wrong() { return this.fault && String(this.fault.sides) === String(this.sides) ? this.fault : null; }

  /** Goes to a tick and stays. @param {number} tick */
  go(tick) {
    const { scene } = this;
    if (!scene) return;
    cancelAnimationFrame(this.frame ?? 0);
    this.tick = Math.max(0, Math.min(scene.last, tick));
    this.slider.value = String(this.tick);
    const label = `${scene.labels[this.tick]}`;
    byId("label").textContent = label;
    this.slider.setAttribute("aria-valuetext", `${label}, ${this.tick} of ${scene.last}`);
    this.draw(scene.ticks[this.tick]);
    this.mark();
  }

  /** @param {number} time */
  draw(time) {
    this.mesh.draw(this.tick, time);
    this.time.draw(this.tick, time);
  }

  /** Lets blocks fly from a tick to the next, and goes on while it plays. @param {number} tick */
  fly(tick) {
    const { scene } = this;
    if (!scene || tick >= scene.last) return this.play(false);
    this.go(tick);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.arrive(tick + 1, 600);
    const [from, to] = [scene.ticks[tick], scene.ticks[tick + 1]], length = Math.min(1000, Math.max(160, 22000 / scene.last));
    const start = performance.now();
    const frame = (/** @type {number} */ now) => {
      const part = Math.min(1, Math.max(0, (now - start) / length));
      if (part >= 1) return this.arrive(tick + 1, Math.min(450, length / 2));
      this.draw(from + Math.max(1e-6, part) * (to - from));
      this.frame = requestAnimationFrame(frame);
    };
    this.frame = requestAnimationFrame(frame);
  }

  /** @param {number} tick @param {number} pause milliseconds before the next */
  arrive(tick, pause) {
    this.go(tick);
    if (this.isPlaying) this.timer = setTimeout(() => this.isPlaying && this.fly(this.tick), pause);
  }

  /** @param {boolean} isPlaying */
  play(isPlaying) {
    this.isPlaying = isPlaying;
    clearTimeout(this.timer);
    const button = byId("play");
    button.textContent = isPlaying ? "Pause" : "Play";
    button.setAttribute("aria-pressed", String(isPlaying));
    if (isPlaying) this.fly(this.tick === this.scene?.last ? 0 : this.tick);
    else this.go(this.tick);
  }

  /** @param {number | null} rank @param {string | null} block */
  choose(rank, block) {
    this.selected = rank === null ? null : { rank, block };
    this.mark();
  }

  mark() {
    const { scene, selected, wrong } = this;
    if (!scene) return;
    this.mesh.mark(selected, wrong);
    this.time.mark(selected, wrong);
    const inspector = byId("inspector");
    if (!selected) {
      inspector.replaceChildren(html("p", { class: "hint" }, "Point at a block, or tab to a device, go on with the arrows and press Enter: where the block was, who needs it next, and which message carries it."));
      return;
    }
    const { sent, held, peak } = scene.amounts[this.tick][selected.rank], place = scene.run.axes.map((axis, i) => `${axis}=${scene.run.places[selected.rank][i]}`).join(", ");
    const where = `device ${selected.rank}${place ? ` (${place})` : ""}`;
    const story = selected.block ? storyOf(scene, selected.rank, selected.block, this.tick) : [];
    inspector.replaceChildren(html("p", {}, ...(selected.block ? [html("strong", {}, plain(selected.block)), " on "] : []), where, `, ${scene.labels[this.tick]}`),
      ...story.map((line) => html("p", {}, line)), html("p", { class: "hint" }, `Sent ${bytesText(sent)}, holds ${bytesText(held)}, at most ${bytesText(peak)} so far (4 bytes an element).`));
  }
}

if (typeof document !== "undefined" && document.getElementById("data")) {
  Object.assign(globalThis, { page: new Page(JSON.parse(byId("data").textContent ?? "{}")) });
}
