// The project's own prover in a worker of the page: Python and Z3 as WebAssembly, from this folder.
// @ts-ignore: it is in the same folder where the site is served
import { loadPyodide } from "./pyodide.mjs";

const PROVE = `
import sys, types

def _numpy(text):
    module = types.ModuleType("numpy")
    exec(compile(text, "numpy_of_lists.py", "exec"), module.__dict__)
    sys.modules["numpy"] = module
    sys.modules["numpy.typing"] = types.ModuleType("numpy.typing")
    sys.modules["numpy.typing"].NDArray = module.typing.NDArray

def _prove(text):
    from primepar.errors import PrimeParError
    from primepar.verify import verify_primitive

    names = {}
    exec(compile(text, "mine.py", "exec"), names)
    try:
        report = verify_primitive(names["Mine"](), "mine.py:Mine", 60)
    except PrimeParError as error:
        return {"verdict": "refused", "report": str(error)}
    text = "\\n".join(report.lines(f"for {report.scope}", seconds=True))
    return {"verdict": report.verdict, "report": text}

def _judge(text):
    import msgspec
    from primepar.schedule import Program
    from primepar.verify.program import judgement

    return judgement(msgspec.json.decode(text, type=Program))

def _answer(kind, text):
    import json
    return json.dumps((_prove if kind == "map" else _judge)(text))
`;

const load = async (/** @type {string} */ name) => (await fetch(name)).arrayBuffer();

/** @param {(progress: string) => void} show */
async function ready(show) {
  show("Loading Python (1 of 3) ...");
  const python = await loadPyodide();
  show("Loading Z3 (2 of 3) ...");
  const place = python.runPython("import site; site.getsitepackages()[0]");
  for (const name of ["msgspec.zip", "z3.zip", "primepar.zip"]) {
    python.unpackArchive(await load(name), "zip", { extractDir: place });
  }
  show("Loading the prover (3 of 3) ...");
  python.runPython(PROVE);
  python.globals.get("_numpy")(new TextDecoder().decode(await load("numpy_of_lists.txt")));
  python.runPython("import importlib; importlib.invalidate_caches(); import primepar.verify");
  return python;
}

/** @type {Promise<any> | undefined} */
let loading;
onmessage = async ({ data, ports: [port] }) => {
  const show = (/** @type {string} */ progress) => port.postMessage({ progress });
  try {
    const python = await (loading ??= ready(show)), [[kind, text]] = Object.entries(data);
    show("Proving ...");
    port.postMessage(JSON.parse(python.globals.get("_answer")(kind, text)));
  } catch (error) {
    port.postMessage({ verdict: "unknown", kind: "refuted", report: String(error), text: String(error), places: [] });
  }
};
