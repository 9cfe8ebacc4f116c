/**
 * The diagram as plain data: as a table for a file, and as what is drawn, for checks.
 */

/** @import { ModuleBox } from "../../contract" */
/** @import { BoxFigures } from "./quantities.js" */

/**
 * A row for each parameter of the innermost boxes, and one for a box without any.
 * @param {ModuleBox[]} boxes
 * @param {(path: string) => BoxFigures} figures
 * @returns {(string | number)[][]}
 */
export function tableOf(boxes, figures) {
  const header = ["path", "label", "kind", "parameter", "shape", "size"];
  const live = ["output_shape", "mean_norm", "flops", "bytes", "seconds"];
  const leaves = boxes.filter((box) => box.children.length === 0 || box.kind === "block");
  return [
    [...header, ...live],
    ...leaves.flatMap((box) => {
      const { shape, norm, flops, bytes, seconds } = figures(box.path);
      const numbers = [shape?.join("x") ?? "", norm ?? "", flops ?? "", bytes ?? "", seconds ?? ""];
      const rows = box.parameters.map(({ name, shape: size }) => [
        name,
        size.join("x"),
        size.reduce((product, each) => product * each, 1),
      ]);
      return (rows.length > 0 ? rows : [["", "", ""]]).map((row) => [box.path, box.label, box.kind, ...row, ...numbers]);
    }),
  ];
}

/**
 * @param {ModuleBox[]} boxes
 * @param {HTMLElement} drawing
 * @param {(path: string) => BoxFigures} figures
 */
export function readDiagram(boxes, drawing, figures) {
  return {
    modules: boxes.map(({ path, label, kind, parameter_count, shape }) => ({ path, label, kind, parameter_count, shape })),
    figures: Object.fromEntries(boxes.map(({ path }) => [path, figures(path)])),
    drawn: /** @type {SVGGElement[]} */ ([...drawing.querySelectorAll(".module")]).map((module) => ({
      path: module.dataset.path,
      form: module.dataset.form,
      parameter_count: Number(module.dataset.parameterCount),
      y: Number(module.dataset.y),
      texts: [...module.querySelectorAll("text")].map((text) => text.textContent.trim()),
      fill: module.querySelector("rect")?.getAttribute("fill"),
    })),
    sums: /** @type {SVGCircleElement[]} */ ([...drawing.querySelectorAll("circle.sum")]).map((circle) => ({
      of: circle.dataset.of,
      y: Number(circle.getAttribute("cy")),
    })),
    crossConnections: drawing.querySelectorAll("path[marker-end^='url(#arrow-cross']").length,
  };
}
