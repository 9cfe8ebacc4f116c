/**
 * Where every box of a model stands: the picture of the paper (Vaswani et al. 2017, figure 1), made from the parts that
 * this model has. Columns grow upwards, an encoder on the left and a decoder on the right; a layer is open, with its
 * boxes in it, or closed to one box.
 */

/** @import { Part } from "../../contract" */

/**
 * @typedef {object} Box
 * @property {Part} part
 * @property {"part" | "closed" | "frame"} as
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} height
 * @property {number} column
 */
/** @typedef {{ points: [number, number][], as: "flow" | "residual" | "cross" }} Arrow */
/** @typedef {{ x: number, y: number }} Sum where a residual is added */
/** @typedef {{ boxes: Box[], arrows: Arrow[], sums: Sum[], ends: { x: number, y: number, of: "in" | "out", column: number }[], width: number, height: number }} Layout */

/**
 * @typedef {object} Sizes
 * @property {number} box width of a box
 * @property {number} high height of a box
 * @property {number} between columns
 * @property {number} rail room beside a box for the residual
 */
/** @type {Sizes} */
export const ROOMY = { box: 224, high: 58, between: 92, rail: 26 };
/** @type {Sizes} */
export const NARROW = { box: 122, high: 60, between: 14, rail: 14 };

const GAP = 18;
const PAD = 10;
const TITLE = 24;
const CLOSED = 34;
const SUM = 9;
const EDGE = 34;

/**
 * @param {Part} model
 * @param {Set<string>} open paths of the layers that are open
 * @param {Sizes} sizes
 * @returns {Layout}
 */
export function layOut(model, open, sizes) {
  const wide = sizes.box + 2 * PAD + sizes.rail;
  const columns = split(model.parts).map((parts, number) => {
    const left = number * (wide + sizes.between);
    return grow(parts, number, left, open, sizes);
  });
  const all = {
    boxes: columns.flatMap((column) => column.boxes),
    arrows: columns.flatMap((column) => column.arrows),
    sums: columns.flatMap((column) => column.sums),
    ends: columns.flatMap((column) => column.ends),
  };
  if (columns.length > 1) all.arrows.push(...crossing(columns[0], columns[1], sizes));
  const highest = Math.min(...columns.map((column) => column.top)) - EDGE - GAP;
  return {
    ...all,
    boxes: all.boxes.map((box) => ({ ...box, y: box.y - highest })),
    arrows: all.arrows.map((arrow) => ({ ...arrow, points: arrow.points.map(([x, y]) => [x, y - highest]) })),
    sums: all.sums.map(({ x, y }) => ({ x, y: y - highest })),
    ends: all.ends.map((end) => ({ ...end, y: end.y - highest })),
    width: columns.length * wide + (columns.length - 1) * sizes.between,
    height: EDGE - highest,
  };
}

/**
 * A column begins with what goes in, and has all up to the next input.
 * @param {Part[]} parts
 */
function split(parts) {
  /** @type {Part[][]} */
  const columns = [];
  for (const part of parts) {
    const column = columns.at(-1);
    const full = column?.some((each) => each.kind === "stack");
    if (column === undefined || (full && (part.kind === "input" || part.kind === "stack"))) columns.push([part]);
    else column.push(part);
  }
  return columns;
}

/** @typedef {Omit<Layout, "width" | "height"> & { top: number, middle: number, crossings: { x: number, y: number }[] }} Column */

/**
 * @param {Part[]} parts
 * @param {number} number
 * @param {number} left
 * @param {Set<string>} open
 * @param {Sizes} sizes
 * @returns {Column}
 */
function grow(parts, number, left, open, sizes) {
  const x = left + PAD;
  const middle = x + sizes.box / 2;
  /** @type {Column} */
  const made = { boxes: [], arrows: [], sums: [], ends: [], top: 0, middle, crossings: [] };
  let y = 0;
  let from = y;

  /** A line from what is below up to here. */
  const reach = () => {
    if (from > y)
      made.arrows.push({
        points: [
          [middle, from],
          [middle, y],
        ],
        as: "flow",
      });
  };
  /**
   * @param {Part} part
   * @param {"part" | "closed"} as
   */
  const put = (part, as) => {
    const height = as === "closed" ? CLOSED : sizes.high;
    y -= GAP;
    reach();
    y -= height;
    made.boxes.push({ part, as, x, y, width: sizes.box, height, column: number });
    if (part.attention?.side === "cross" || (as === "closed" && holdsCross(part)))
      made.crossings.push({ x, y: y + height / 2 });
    from = y;
  };
  /** @param {Part} part one sublayer: a function with its norm, and the sum with what went past it */
  const sublayer = (part) => {
    if (part.parts.length === 0) return put(part, "part");
    const begin = Math.min(from - 5, y - 4); // inside the frame, where the layer has one
    for (const inside of part.parts) {
      put(inside, "part");
      const isFunction = inside.kind !== "norm";
      if (!isFunction || part.kind !== "residual") continue;
      y -= GAP + 2 * SUM;
      const sum = y + SUM;
      made.arrows.push({
        points: [
          [middle, from],
          [middle, sum + SUM],
        ],
        as: "flow",
      });
      const rail = x + sizes.box + sizes.rail - 8;
      made.arrows.push({
        points: [
          [middle, begin],
          [rail, begin],
          [rail, sum],
          [middle + SUM, sum],
        ],
        as: "residual",
      });
      made.sums.push({ x: middle, y: sum });
      from = y;
    }
  };
  /** @param {Part} part */
  const block = (part) => {
    if (!open.has(part.path) || part.parts.length === 0) return put(part, "closed");
    const bottom = y - GAP / 2;
    y -= GAP / 2;
    for (const inside of part.parts) sublayer(inside);
    y -= PAD / 2 + TITLE;
    made.boxes.push({
      part,
      as: "frame",
      x: left,
      y,
      width: sizes.box + 2 * PAD + sizes.rail,
      height: bottom - y,
      column: number,
    });
  };

  made.ends.push({ x: middle, y: 0, of: "in", column: number });
  for (const part of parts) {
    if (part.kind !== "stack") put(part, "part");
    else for (const inside of part.parts) inside.kind === "block" ? block(inside) : put(inside, "part");
  }
  made.top = y;
  if (parts.some((part) => part.kind === "output")) {
    made.arrows.push({
      points: [
        [middle, y],
        [middle, y - GAP],
      ],
      as: "flow",
    });
    made.ends.push({ x: middle, y: y - GAP, of: "out", column: number });
  }
  return made;
}

/**
 * The way from the encoder's last output to every layer of the decoder.
 * @param {Column} from
 * @param {Column} to
 * @param {Sizes} sizes
 * @returns {Arrow[]}
 */
function crossing(from, to, sizes) {
  const rail = to.middle - sizes.box / 2 - PAD - sizes.between / 2;
  const up = from.top - GAP;
  return to.crossings.map(({ x, y }) => ({
    points: [
      [from.middle, from.top],
      [from.middle, up],
      [rail, up],
      [rail, y],
      [x, y],
    ],
    as: "cross",
  }));
}

/**
 * @param {Part} part
 * @returns {boolean}
 */
function holdsCross(part) {
  return part.attention?.side === "cross" || part.parts.some(holdsCross);
}
