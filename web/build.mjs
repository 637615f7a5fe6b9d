// Builds the page into ludus/runs/watch/static. `--check` builds into memory and compares with what is there.
import { build } from "esbuild";
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import path from "node:path";

const here = path.dirname(fileURLToPath(import.meta.url));
const target = path.join(here, "../ludus/runs/watch/static");

const { outputFiles } = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: target,
  bundle: true,
  minify: true,
  write: false,
  format: "iife", // a module does not load from file://, and a report is opened from there
  target: ["chrome111", "firefox113", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  banner: { js: "/* Built from web/. It holds Preact and uPlot: licenses.txt */" },
});
const files = new Map(outputFiles.map((file) => [path.basename(file.path), Buffer.from(file.contents)]));
const notices = ["preact", "uplot"].map(async (name) => {
  const license = await readFile(path.join(here, "node_modules", name, "LICENSE"), "utf8");
  return `app.js holds ${name}:\n\n${license.trim()}\n`;
});
files.set("licenses.txt", Buffer.from((await Promise.all(notices)).join("\n")));
for (const name of ["index.html", "icon.svg"]) files.set(name, await readFile(path.join(here, name)));

if (process.argv.includes("--check")) {
  const stale = [];
  for (const [name, fresh] of files) {
    const committed = await readFile(path.join(target, name)).catch(() => null);
    if (committed === null || !fresh.equals(committed)) stale.push(name);
  }
  if (stale.length) {
    console.error(
      `ludus/runs/watch/static/ is not what web/ builds: ${stale.join(", ")}; run \`make web\` and commit it`,
    );
    process.exit(1);
  }
} else {
  await mkdir(target, { recursive: true });
  for (const [name, bytes] of files) {
    await writeFile(path.join(target, name), bytes);
    console.log(`${name.padEnd(12)}${String(bytes.length).padStart(8)} bytes`);
  }
}
