/**
 * The layout of the model diagram, after figure 1 of the paper (Vaswani et al. 2017). Columns grow upwards, the encoder on
 * the left and the decoder on the right; a layer is open, with its modules inside, or closed to a single box.
 */

/** @import { ModuleBox } from "../../contract" */

/**
 * @typedef {object} PlacedBox
 * @property {ModuleBox} box
 * @property {"module" | "closed" | "open"} form a module, a closed layer, or the frame of an open layer
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} height
 * @property {number} column
 */
/** @typedef {{ points: [number, number][], kind: "flow" | "residual" | "cross" }} Arrow */
/** @typedef {{ x: number, y: number, of: string, joins: "added" | "concatenated" }} Sum where the output of a box is added, or concatenated */
/** @typedef {{ x: number, y: number, end: "input" | "output", column: number }} ColumnEnd */
/** @typedef {{ boxes: PlacedBox[], arrows: Arrow[], sums: Sum[], ends: ColumnEnd[], width: number, height: number }} Layout */

/**
 * @typedef {object} Sizes
 * @property {number} boxWidth
 * @property {number} boxHeight
 * @property {number} columnGap
 * @property {number} closedHeight of a closed layer
 * @property {number} residualGap room beside a box for the residual connection
 */
/** @type {Sizes} */
export const WIDE = { boxWidth: 224, boxHeight: 72, closedHeight: 44, columnGap: 92, residualGap: 26 };
/** @type {Sizes} */
export const NARROW = { boxWidth: 122, boxHeight: 86, closedHeight: 60, columnGap: 14, residualGap: 14 };

const GAP = 18;
const PADDING = 10;
const TITLE_HEIGHT = 24;
const SUM_RADIUS = 9;
const MARGIN = 34;

/**
 * @param {ModuleBox} root
 * @param {Set<string>} open the paths of the open layers
 * @param {Sizes} sizes
 * @returns {Layout}
 */
export function layOut(root, open, sizes) {
  const columnWidth = sizes.boxWidth + 2 * PADDING + sizes.residualGap;
  const columns = splitColumns(root.children).map((boxes, index) =>
    layOutColumn(boxes, index, index * (columnWidth + sizes.columnGap), open, sizes),
  );
  const all = {
    boxes: columns.flatMap((column) => column.boxes),
    arrows: columns.flatMap((column) => column.arrows),
    sums: columns.flatMap((column) => column.sums),
    ends: columns.flatMap((column) => column.ends),
  };
  if (columns.length > 1) all.arrows.push(...crossArrows(columns[0], columns[1], sizes));
  const top = Math.min(...columns.map((column) => column.top)) - MARGIN - GAP;
  return {
    boxes: all.boxes.map((box) => ({ ...box, y: box.y - top })),
    arrows: all.arrows.map((arrow) => ({ ...arrow, points: arrow.points.map(([x, y]) => [x, y - top]) })),
    sums: all.sums.map((sum) => ({ ...sum, y: sum.y - top })),
    ends: all.ends.map((end) => ({ ...end, y: end.y - top })),
    width: columns.length * columnWidth + (columns.length - 1) * sizes.columnGap,
    height: MARGIN - top,
  };
}

/**
 * Split the top-level boxes into columns, each starting with an input.
 * @param {ModuleBox[]} boxes
 */
function splitColumns(boxes) {
  /** @type {ModuleBox[][]} */
  const columns = [];
  for (const box of boxes) {
    const column = columns.at(-1);
    const hasStack = column?.some((each) => each.kind === "stack");
    if (column === undefined || (hasStack && (box.kind === "input" || box.kind === "stack"))) columns.push([box]);
    else column.push(box);
  }
  return columns;
}

/** @typedef {Omit<Layout, "width" | "height"> & { top: number, center: number, crossInputs: { x: number, y: number }[] }} Column */

/**
 * @param {ModuleBox[]} boxes
 * @param {number} index
 * @param {number} left
 * @param {Set<string>} open
 * @param {Sizes} sizes
 * @returns {Column}
 */
function layOutColumn(boxes, index, left, open, sizes) {
  const x = left + PADDING;
  const center = x + sizes.boxWidth / 2;
  /** @type {Column} */
  const column = { boxes: [], arrows: [], sums: [], ends: [], top: 0, center, crossInputs: [] };
  let y = 0;
  let from = y;

  /** @param {number} start @param {number} end */
  const addFlow = (start, end) => {
    column.arrows.push({
      points: [
        [center, start],
        [center, end],
      ],
      kind: "flow",
    });
  };
  /**
   * @param {ModuleBox} box
   * @param {"module" | "closed"} form
   */
  const addBox = (box, form) => {
    const height = form === "closed" ? sizes.closedHeight : sizes.boxHeight;
    y -= GAP;
    if (from > y) addFlow(from, y);
    y -= height;
    column.boxes.push({ box, form, x, y, width: sizes.boxWidth, height, column: index });
    if (box.attention?.attention_type === "cross" || (form === "closed" && containsCross(box)))
      column.crossInputs.push({ x, y: y + height / 2 });
    from = y;
  };
  /**
   * A plus above the box that was added last, with a line to it that goes around this box.
   * @param {ModuleBox} box
   * @param {[number, number][]} around where the line begins
   * @param {Sum["joins"]} joins
   */
  const addSum = (box, around, joins) => {
    y -= GAP + 2 * SUM_RADIUS;
    const sum = y + SUM_RADIUS;
    addFlow(from, sum + SUM_RADIUS);
    const residualX = x + sizes.boxWidth + sizes.residualGap - 8;
    const start = around[around.length - 1][1];
    column.arrows.push({
      points: [...around, [residualX, start], [residualX, sum], [center + SUM_RADIUS, sum]],
      kind: "residual",
    });
    column.sums.push({ x: center, y: sum, of: box.path, joins });
    from = y;
  };
  /** @param {ModuleBox} box a positional encoding: nothing enters it, and the embedding below goes around it */
  const addPosition = (box) => {
    const [embedding, start] = [from, from - GAP / 2];
    from = y - GAP - sizes.boxHeight; // no arrow from the embedding
    addBox(box, "module");
    /** @type {[number, number][]} */
    const around = [
      [center, embedding],
      [center, start],
    ];
    addSum(box, around, box.position === "concatenated" ? "concatenated" : "added");
  };
  /** @param {ModuleBox} sublayer a function with its norm, and the residual connection around it */
  const addSublayer = (sublayer) => {
    if (sublayer.children.length === 0) return addBox(sublayer, "module");
    /** @type {[number, number]} */
    const start = [center, Math.min(from - 5, y - 4)]; // inside the frame of the layer
    for (const box of sublayer.children) {
      addBox(box, "module");
      if (box.kind !== "norm" && sublayer.kind === "residual") addSum(box, [start], "added");
    }
  };
  /** @param {ModuleBox} layer */
  const addLayer = (layer) => {
    if (!open.has(layer.path) || layer.children.length === 0) return addBox(layer, "closed");
    const bottom = y - GAP / 2;
    y -= GAP / 2;
    for (const sublayer of layer.children) addSublayer(sublayer);
    y -= PADDING / 2 + TITLE_HEIGHT;
    const width = sizes.boxWidth + 2 * PADDING + sizes.residualGap;
    column.boxes.push({ box: layer, form: "open", x: left, y, width, height: bottom - y, column: index });
  };

  column.ends.push({ x: center, y: 0, end: "input", column: index });
  for (const box of boxes) {
    if (box.kind === "position") addPosition(box);
    else if (box.kind !== "stack") addBox(box, "module");
    else for (const child of box.children) child.kind === "block" ? addLayer(child) : addBox(child, "module");
  }
  column.top = y;
  if (boxes.some((box) => box.kind === "output")) {
    addFlow(y, y - GAP);
    column.ends.push({ x: center, y: y - GAP, end: "output", column: index });
  }
  return column;
}

/**
 * The connections from the encoder's output to every decoder layer.
 * @param {Column} encoder
 * @param {Column} decoder
 * @param {Sizes} sizes
 * @returns {Arrow[]}
 */
function crossArrows(encoder, decoder, sizes) {
  const middle = decoder.center - sizes.boxWidth / 2 - PADDING - sizes.columnGap / 2;
  const top = encoder.top - GAP;
  return decoder.crossInputs.map(({ x, y }) => ({
    points: [
      [encoder.center, encoder.top],
      [encoder.center, top],
      [middle, top],
      [middle, y],
      [x, y],
    ],
    kind: "cross",
  }));
}

/**
 * @param {ModuleBox} box
 * @returns {boolean}
 */
function containsCross(box) {
  return box.attention?.attention_type === "cross" || box.children.some(containsCross);
}
