/**
 * The build step: `node build.mjs [folder]`.
 *
 * Writes index.html, page.js and page.css for the server, and standalone.html, which contains script and styles inline and
 * the element #embedded for data. The build is reproducible: the same source gives the same bytes.
 */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "..", "src", "regard", "look", "static"));

const result = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.js", style: "style/page.css" },
  outdir: out,
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "iife",
  target: ["chrome120", "firefox121", "safari17"],
  legalComments: "none", // LICENSES.txt contains them
  metafile: true,
  write: false,
  logLevel: "warning",
});
const outputText = (ending) => result.outputFiles.find((file) => file.path.endsWith(ending)).text;
const script = outputText("page.js");
const style = outputText("style.css");

const placeholder = '<script type="application/json" id="embedded"></script>';
const template = readFileSync(join(here, "index.html"), "utf8");
if (!template.includes(placeholder)) throw new Error("index.html has no element for embedded data.");
if (/<\/script/i.test(script) || /<\/style/i.test(style))
  throw new Error("The script or the styles contain a closing tag.");

const digest = (content, kind = "sha256") => createHash(kind).update(content, "utf8").digest("base64");
const short = (content) => createHash("sha256").update(content, "utf8").digest("hex").slice(0, 12);
const policy = [
  "default-src 'none'",
  `script-src 'sha256-${digest(script)}'`,
  `style-src 'sha256-${digest(style)}'`,
  "img-src data: blob:",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");

const fill = (links) =>
  template.replace("<!-- style -->", () => links.style).replace("<!-- script -->", () => links.script);
const files = {
  "page.js": script,
  "page.css": style,
  "index.html": fill({
    style: `<link rel="stylesheet" href="page.css?${short(style)}">`,
    script: `<script defer src="page.js?${short(script)}"></script>`,
  }),
  // At the end of the body: an inline script cannot be deferred, and needs the data before it.
  "standalone.html": fill({
    style: `<meta http-equiv="Content-Security-Policy" content="${policy}">\n    <style>${style}</style>`,
    script: `<script>${script}</script>`,
  }),
  "LICENSES.txt": licenses(result.metafile),
};
mkdirSync(out, { recursive: true });
for (const [name, content] of Object.entries(files)) {
  writeFileSync(join(out, name), content);
  console.log(`${name.padEnd(16)} ${Buffer.byteLength(content).toLocaleString("en").padStart(9)} bytes`);
}

/** The licenses of all bundled packages. */
function licenses(metafile) {
  const names = new Set();
  for (const path of Object.keys(metafile.inputs)) {
    const found = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found !== null) names.add(found[1]);
  }
  const parts = [...names].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
    if (file === undefined || !existsSync(join(folder, file))) throw new Error(`${name} has no license file.`);
    return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  return `page.js and standalone.html contain parts of these packages.\n\n${parts.join(`\n${"-".repeat(72)}\n\n`)}`;
}
