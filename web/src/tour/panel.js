/**
 * The tour: a panel beside the view, with ten pages on how the model came to its output, from the words to attention.
 *
 * The panel is not modal. Each page sets the state of the page, so that the view beside it shows what the text says, with
 * numbers of the current trace. Which page is open is in the state; the browser remembers it between visits.
 */

/** @import { State, Trace, View, ViewContext } from "../contract" */
/** @import { Page, Step } from "./steps.js" */

import { h, setChildren } from "../page/dom.js";
import { readSetting, saveSetting } from "../page/local_storage.js";
import { errorMessage } from "../page/messages.js";
import { stateToHash } from "../page/store.js";
import { STEPS } from "./steps.js";

/** Under this name the browser keeps the page that was open last. */
const SETTING = "tour";
/** Milliseconds of reading before the panel says so. */
const PATIENCE = 150;
/** How often a view is looked at, in milliseconds and in all, until the part to scroll to is drawn and stays in its place. */
const [LOOK_AGAIN, LOOKS] = [100, 20];
/** A swipe goes this many pixels to one side, and not half as many up or down. */
const SWIPE = 60;

/** @param {ViewContext} context @param {View[]} views */
export function createTour(context, views) {
  const panel = new TourPanel(context, views);
  return {
    button: panel.button,
    element: panel.element,
    update: (/** @type {State} */ state, /** @type {Trace | null} */ trace) => panel.update(state, trace),
  };
}

class TourPanel {
  /** @param {ViewContext} context @param {View[]} views */
  constructor(context, views) {
    this.context = context;
    this.views = views;
    /** The page that is open or about to be, and what the state said last; "" if the tour is closed. */
    this.target = "";
    this.seen = "";
    /** What was last asked for, and the trace that it was written from. */
    this.key = "";
    /** @type {Trace | null} */
    this.trace = null;
    /** A reloaded page restores its own state, so its first page does not set it. */
    this.isRestored = /[#&]trace=/.test(location.hash);
    /** @type {Page | null} */
    this.page = null;
    this.link = h("a", { class: "tour-show", onclick: (/** @type {MouseEvent} */ event) => this.showAgain(event) });
    this.reading = new AbortController();
    /** Whether the title gets the focus when the page is shown. */
    this.focusTitle = false;

    this.button = h("button", { type: "button", "aria-expanded": "false", onclick: () => this.toggle() }, "Tour");
    this.progress = h("p", { class: "tour-progress" });
    this.title = h("h2", { id: "tour-title", tabindex: -1 });
    this.body = h("div", { class: "tour-body" });
    this.previous = h("button", { type: "button", onclick: () => this.move(-1) }, "← Previous");
    this.next = h("button", { type: "button", class: "strong", onclick: () => this.move(1) });
    this.pages = STEPS.map(({ id, title }, index) =>
      h("button", { type: "button", "aria-label": `${index + 1}. ${title}`, title, onclick: () => this.go(id) }, index + 1),
    );
    this.status = h("p", { class: "visually-hidden", role: "status" });
    this.element = h(
      "aside",
      { class: "tour", id: "tour", "aria-labelledby": this.title.id, hidden: true },
      h(
        "div",
        { class: "tour-header" },
        this.progress,
        h("button", { type: "button", class: "quiet", onclick: () => this.close() }, "Close"),
      ),
      this.title,
      this.body,
      h(
        "div",
        { class: "tour-footer" },
        h("ol", { class: "tour-pages", "aria-label": "Pages of the tour" }, this.pages.map((page) => h("li", {}, page))),
        h("div", { class: "tour-moves" }, this.previous, this.next),
      ),
      this.status,
    );
    this.button.setAttribute("aria-controls", this.element.id);
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    onSwipe(this.element, (step) => this.move(step));
  }

  toggle() {
    if (this.target !== "") return this.close();
    this.focusTitle = true;
    this.go(stepOf(readSetting(SETTING) ?? "").id);
  }

  close() {
    this.target = "";
    this.hide();
    this.context.store.set({ tour: "" });
    this.button.focus();
  }

  /** @param {number} count of pages, forward or backward */
  move(count) {
    const index = STEPS.indexOf(stepOf(this.target)) + count;
    if (index < 0) return;
    if (index < STEPS.length) return this.go(STEPS[index].id);
    this.close();
    saveSetting(SETTING, STEPS[0].id); // it was read to its end, so the next tour is a new one
  }

  /** @param {string} id */
  go(id) {
    this.target = id;
    void this.load(this.context.trace(), true);
  }

  /** @param {State} state @param {Trace | null} trace */
  update(state, trace) {
    if (state.tour !== this.seen) {
      this.seen = state.tour; // by a link, or the browser's back button
      this.target = state.tour === "" ? "" : stepOf(state.tour).id;
    }
    if (this.target === "") return this.hide();
    this.showLink(state);
    if (keyOf(this.target, trace) === this.key) return;
    const isOther = trace !== this.trace;
    const applies = isOther && (this.trace === null ? !this.isRestored : trace?.model.id !== this.trace.model.id || state.view === this.page?.show.view);
    void this.load(trace, applies);
  }

  hide() {
    this.reading.abort();
    this.key = "";
    this.element.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
    delete document.body.dataset.tour;
  }

  /** Read the numbers of the page from a trace, and show it. @param {Trace | null} trace @param {boolean} applies whether the state is set to what the page shows */
  async load(trace, applies) {
    const step = stepOf(this.target);
    const key = keyOf(step.id, trace);
    this.key = key;
    this.reading.abort();
    this.reading = new AbortController();
    this.open(step);
    const waiting = setTimeout(() => this.wait(), PATIENCE);
    const { signal } = this.reading;
    const { source } = this.context;
    /** @type {Page | null} */
    let page = null;
    let message = "The tour follows a text through the model. It begins as soon as the model has run one, from the top of the page.";
    try {
      const reading = trace && { trace, source, signal };
      if (reading !== null) message = step.skipped(reading);
      if (reading !== null && message === "") page = await step.write(reading);
    } catch (error) {
      message = `The numbers of this page could not be read: ${errorMessage(error)}`;
    }
    clearTimeout(waiting);
    if (signal.aborted) return;
    this.page = page;
    this.trace = trace;
    this.draw(step, page, message);
    this.seen = step.id;
    if (trace !== null) saveSetting(SETTING, step.id);
    this.context.store.set({ ...(applies ? page?.show : {}), tour: step.id });
    if (applies) this.scroll();
  }

  /** Show the panel with the title of a page, whose text follows. @param {Step} step */
  open(step) {
    const index = STEPS.indexOf(step);
    const isLast = index === STEPS.length - 1;
    this.element.hidden = false;
    document.body.dataset.tour = step.id;
    this.button.setAttribute("aria-expanded", "true");
    setChildren(this.progress, `Tour: ${index + 1} of ${STEPS.length}`);
    setChildren(this.title, step.title);
    setChildren(this.next, isLast ? "Finish" : "Next →");
    if (index === 0 && document.activeElement === this.previous) this.next.focus();
    this.previous.disabled = index === 0;
    this.pages.forEach((page, place) =>
      place === index ? page.setAttribute("aria-current", "step") : page.removeAttribute("aria-current"),
    );
    this.body.setAttribute("aria-busy", "true");
    if (!this.focusTitle) return;
    this.focusTitle = false;
    this.title.focus();
  }

  wait() {
    setChildren(this.body, h("p", { class: "note" }, "Reading the numbers …"));
  }

  /** @param {Step} step @param {Page | null} page @param {string} message instead of a page */
  draw(step, page, message) {
    const hadFocus = this.body.contains(document.activeElement);
    this.body.removeAttribute("aria-busy");
    this.body.scrollTop = 0;
    setChildren(
      this.body,
      page === null ? h("p", {}, message) : page.text.map((paragraph) => h("p", {}, paragraph)),
      page && h("p", {}, this.link),
      page?.example ?? null,
      page?.tryIt && h("p", { class: "tour-try" }, h("b", {}, "Try it: "), page.tryIt),
    );
    this.showLink(this.context.store.get());
    if (hadFocus) this.title.focus();
    const index = STEPS.indexOf(step) + 1;
    setChildren(this.status, `${index} of ${STEPS.length}: ${step.title}. ${page === null ? message : `Shown in “${this.viewTitle()}”.`}`);
  }

  /** The link that sets the state again, if the reader has gone elsewhere. @param {State} state */
  showLink(state) {
    if (this.page === null) return;
    setChildren(this.link, `Show me in “${this.viewTitle()}”`);
    this.link.setAttribute("href", stateToHash({ ...state, ...this.page.show }));
  }

  /** @param {MouseEvent} event */
  showAgain(event) {
    if (event.metaKey || event.ctrlKey || event.shiftKey || this.page === null) return;
    event.preventDefault();
    this.context.store.set(this.page.show);
    this.scroll();
  }

  /** Scroll to the part of the view that the page is about, and the navigation to the view's tab. */
  scroll() {
    const tab = document.querySelector("nav.views [aria-current]");
    if (tab instanceof HTMLElement && tab.offsetParent !== null)
      tab.offsetParent.scrollLeft = tab.offsetLeft - (tab.offsetParent.clientWidth - tab.offsetWidth) / 2;
    if (this.page?.part !== undefined) void scrollToPart(this.page.part, this.reading.signal);
  }

  viewTitle() {
    return this.views.find(({ name }) => name === this.page?.show.view)?.title ?? "";
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const count = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (count === undefined && event.key !== "Escape") return;
    event.preventDefault(); // views use the arrow keys, too
    if (count === undefined) return this.close();
    if (count < 0 || this.target !== STEPS[STEPS.length - 1].id) this.move(count);
  }
}

/** @param {string} id @param {Trace | null} trace */
function keyOf(id, trace) {
  return `${id} ${trace?.id ?? ""} ${trace?.model.id ?? ""}`;
}

/** The page with an id; the first for an unknown one. @param {string} id @returns {Step} */
function stepOf(id) {
  return STEPS.find((step) => step.id === id) ?? STEPS[0];
}

/** Scroll to a part of the view as soon as it is drawn. @param {string} part a selector @param {AbortSignal} signal */
async function scrollToPart(part, signal) {
  let before = NaN;
  for (let looks = 0; looks < LOOKS && !signal.aborted; looks++) {
    const element = document.querySelector(`main ${part}`);
    const { top, height } = element?.getBoundingClientRect() ?? { top: NaN, height: 0 };
    if (height > 0 && top === before) return element?.scrollIntoView({ block: "start" });
    before = height > 0 ? top : NaN;
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN));
  }
  return undefined;
}

/**
 * Call back after a swipe to the left (1) or right (−1), unless it scrolls something.
 * @param {HTMLElement} element
 * @param {(step: number) => void} act
 */
function onSwipe(element, act) {
  /** @type {Touch | null} */
  let start = null;
  element.addEventListener(
    "touchstart",
    (event) => {
      const scroller = event.target instanceof Element ? event.target.closest(".scrollable") : null;
      const scrolls = scroller !== null && scroller.scrollWidth > scroller.clientWidth;
      start = event.touches.length === 1 && !scrolls ? event.touches[0] : null;
    },
    { passive: true },
  );
  element.addEventListener("touchend", (event) => {
    const end = event.changedTouches[0];
    if (start === null || end === undefined) return;
    const [x, y] = [end.clientX - start.clientX, end.clientY - start.clientY];
    start = null;
    if (Math.abs(x) > SWIPE && Math.abs(x) > 2 * Math.abs(y)) act(x < 0 ? 1 : -1);
  });
}
