/**
 * Words as points: the color is the sentence, the shape its group. All layers have one scale, so that the points are seen
 * to part; they move from one layer to the next.
 */

/** @import { ContextualVectors } from "../../contract" */
/** @import { Sentence } from "./sentences.js" */

import { symbol, symbolCircle, symbolCross, symbolDiamond, symbolSquare, symbolStar, symbolTriangle } from "d3-shape";
import { h, s, setChildren } from "../../page/dom.js";

const [MAX_WIDTH, MIN_WIDTH, HEIGHT, MARGIN] = [640, 300, 420, 34];
/** Milliseconds that points move. */
const DURATION = 450;
/** The same word nearer than this, in pixels, shares a label. */
const [NEAR_X, NEAR_Y] = [60, 14];
const SHAPES = [symbolStar, symbolCircle, symbolSquare, symbolTriangle, symbolDiamond, symbolCross];

/** @typedef {{ x: number, y: number }} Place */

export class WordMap {
  /** @param {(sentence: number) => string} color */
  constructor(color) {
    this.color = color;
    this.points = s("g", {});
    this.labels = s("g", { class: "map-labels" });
    this.svg = s(
      "svg",
      { class: "word-map", role: "img" },
      this.points,
      this.labels,
    );
    this.element = h("div", { class: "panel" }, this.svg);
    /** @type {ContextualVectors | null} */
    this.vectors = null;
    /** @type {Place[]} */
    this.places = [];
    this.theme = "";
    this.width = MAX_WIDTH;
    this.frame = 0;
  }

  /** @param {ContextualVectors} vectors @param {Sentence[]} sentences @param {number} stage @param {string} word */
  show(vectors, sentences, stage, word) {
    const { name, points } = vectors.layers[stage];
    const theme = document.documentElement.dataset.theme ?? "";
    const isNew = vectors !== this.vectors || theme !== this.theme;
    [this.vectors, this.theme] = [vectors, theme];
    if (isNew) this.resize();
    const scale = scaleOf(vectors, this.width);
    const places = points.map(([x, y]) => ({ x: this.width / 2 + scale * x, y: HEIGHT / 2 - scale * y }));
    const words = vectors.shown.map((index) => vectors.words[index]);
    this.svg.setAttribute(
      "aria-label",
      `${points.length} words as points, ${name}. The table below has the similarities as numbers.`,
    );
    if (isNew) {
      setChildren(
        this.points,
        words.map(({ sentence, text }) =>
          s(
            "path",
            {
              d: shape(sentences[sentence].group),
              class: text.toLowerCase() === word ? "compared" : "",
              style: { fill: this.color(sentence) },
            },
            s("title", {}, `${text}: ${sentences[sentence].text}`),
          ),
        ),
      );
    }
    this.move(isNew ? places : this.places, places, () => this.drawLabels(words, places, word));
    this.places = places;
  }

  /** As wide as there is room. */
  resize() {
    const available = (this.element.parentElement?.parentElement?.clientWidth ?? MAX_WIDTH) - 34;
    this.width = Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, available));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.setAttribute("width", String(this.width));
    this.svg.setAttribute("height", String(HEIGHT));
  }

  /** Move the points, at once if the reader wants no motion. @param {Place[]} from @param {Place[]} to @param {() => void} then */
  move(from, to, then) {
    cancelAnimationFrame(this.frame);
    setChildren(this.labels);
    const start = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches || from === to || from.length !== to.length;
    const step = (/** @type {number} */ now) => {
      const fraction = still ? 1 : Math.min(1, Math.max(0, (now - start) / DURATION));
      const eased = fraction * fraction * (3 - 2 * fraction);
      [...this.points.children].forEach((point, index) => {
        const x = mix(from[index]?.x ?? to[index].x, to[index].x, eased);
        const y = mix(from[index]?.y ?? to[index].y, to[index].y, eased);
        point.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      });
      if (fraction < 1) this.frame = requestAnimationFrame(step);
      else then();
    };
    step(start);
  }

  /** @param {{ sentence: number, text: string }[]} words @param {Place[]} places @param {string} word */
  drawLabels(words, places, word) {
    /** @type {{ text: string, place: Place, sentences: number[] }[]} */
    const labels = [];
    words.forEach(({ text, sentence }, index) => {
      const place = places[index];
      const same = labels.find((each) => each.text.toLowerCase() === text.toLowerCase() && isNear(each.place, place));
      if (same !== undefined) same.sentences.push(sentence + 1);
      else labels.push({ text, place, sentences: [sentence + 1] });
    });
    setChildren(
      this.labels,
      labels.map(({ text, place, sentences }) => {
        const isLeft = place.x > this.width - 110;
        return s(
          "text",
          {
            class: text.toLowerCase() === word ? "compared" : "",
            x: place.x + (isLeft ? -9 : 9),
            y: place.y + 4,
            "text-anchor": isLeft ? "end" : "start",
          },
          text,
          s("tspan", { class: "sentence-number", dx: 3 }, sentences.join(" ")),
        );
      }),
    );
  }

  leave() {
    cancelAnimationFrame(this.frame);
  }
}

/** The shape of a group's points. @param {number} group @param {number} [size] */
export function shape(group, size = 70) {
  const kind = SHAPES[group === 0 ? 0 : 1 + ((group - 1) % (SHAPES.length - 1))];
  return symbol(kind, size)() ?? "";
}

/** Pixels per unit: the largest coordinate of all layers fits. @param {ContextualVectors} vectors @param {number} width */
function scaleOf({ layers }, width) {
  let [x, y] = [1e-9, 1e-9];
  for (const { points } of layers) {
    for (const point of points) [x, y] = [Math.max(x, Math.abs(point[0])), Math.max(y, Math.abs(point[1]))];
  }
  return Math.min((width / 2 - MARGIN) / x, (HEIGHT / 2 - MARGIN) / y);
}

/** @param {Place} first @param {Place} second */
function isNear(first, second) {
  return Math.abs(first.x - second.x) < NEAR_X && Math.abs(first.y - second.y) < NEAR_Y;
}

/** @param {number} from @param {number} to @param {number} fraction */
function mix(from, to, fraction) {
  return from + fraction * (to - from);
}
