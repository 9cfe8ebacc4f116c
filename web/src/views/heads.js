/**
 * Attention heads: all as thumbnails, one as a matrix, one or several as lines between tokens, and the row of a token as
 * a weighted sum.
 */

/** @import { AttentionType, HeadRoles, State, Trace, View } from "../contract" */
/** @import { Selection } from "./heads/selection.js" */
/** @import { Pin } from "./heads/lines.js" */

import { h, setChildren } from "../page/dom.js";
import { domToSvg } from "../page/dom_to_svg.js";
import { explanation } from "../page/explanation.js";
import { capitalize, formatWeight, headName } from "../page/format.js";
import { weightLegend } from "../page/colors/legend.js";
import { weightLimit } from "../page/colors/scales.js";
import { matrixPanel } from "../page/matrix_panel.js";
import { selectedHead } from "../page/selected_heads.js";
import { linkTerms } from "../page/glossary/links.js";
import { headControls } from "./heads/controls.js";
import { HeadDifference } from "./heads/difference/panel.js";
import { linesPanel } from "./heads/lines.js";
import { attentionNotes, attentionTable } from "./heads/notes.js";
import { PatchClassesPanel } from "./heads/patch_classes.js";
import { PatchPanel, imageQuery } from "./heads/patches.js";
import { RolesControl } from "./heads/roles/control.js";
import { MeasuredHeads } from "./heads/roles/measured.js";
import { rolesTable } from "./heads/roles/table.js";
import { causalMask, groupRowsAndColumns, select } from "./heads/selection.js";
import { thumbnailGrid } from "./heads/thumbnails.js";
import { tokenEditor } from "./heads/token_editor.js";
import { headKey, weightedSumLine, weightedSums } from "./heads/weighted_sum.js";

const STEPS = "Each row is a step of the decoder, “read → written”";

/** @type {Record<AttentionType, { rows: string, columns: string }>} */
const AXES = {
  encoder: { rows: "Each row is a query token", columns: "each column a key token it attends to" },
  decoder: { rows: STEPS, columns: "each column a token that it attends to: the one that it reads, or an earlier one" },
  cross: { rows: STEPS, columns: "each column a source token that it attends to" },
};

/** @type {View} */
export const view = {
  name: "heads",
  title: "Attention heads",
  fits: (model) => model === null || model.attention.length > 0,
  mountDifference: (element, first, second) => new HeadDifference(element, first, second),
  mount(element, context) {
    const { store, source } = context;
    const controls = headControls(context);
    const thumbnails = thumbnailGrid(context);
    const rolesControl = new RolesControl(source, store, (measured) => {
      roles = measured;
      showRoles(store.get(), context.trace());
    });
    const table = rolesTable(store);
    const editor = tokenEditor(context);
    const sums = h("div", { class: "weighted-sums", "aria-live": "polite" });
    const notes = h("div", { class: "view-notes" });
    const lines = linesPanel({ pin, point: (pin) => showSums(pin) });
    const patches = new PatchPanel(source, store, (message) => context.notify(message, "error"), () => showSums());
    const patchClasses = new PatchClassesPanel(source, store);
    const matrixTitle = h("h2", {});
    const legend = h("div", { class: "legends" });
    const matrix = matrixPanel({
      label: "Attention matrix. Arrow keys move from cell to cell, Enter pins the row.",
      describe: describeCell,
      pin: (row) => pin({ role: "query", group: row }),
    });
    const linesTitle = h("h2", {});
    const linesSection = h(
      "section",
      { class: "panel lines-panel", "aria-label": "Attention as lines" },
      linesTitle,
      patches.element,
      lines.element,
      sums,
    );
    const matrixSection = h(
      "section",
      { class: "panel matrix-section", "aria-label": "Attention as a matrix" },
      matrixTitle,
      legend,
      matrix.element,
    );
    const thumbnailSection = h(
      "section",
      { class: "panel thumbnail-section", "aria-label": "All heads" },
      h("h2", {}, "All heads"),
      h(
        "p",
        { class: "note" },
        "The stronger the color, the larger the weight. Click a head to select it; + overlays several heads (Space on the keyboard). A head’s number and color are its place in the order of selection.",
      ),
      rolesControl.element,
      !source.live &&
        h(
          "p",
          { class: "note", "data-no-export": true },
          "Measuring what heads do on many sentences needs the running model, and this page is a standalone file.",
        ),
      thumbnails.element,
    );
    const placeholder = h("p", { class: "note" }, "The heads will appear here once the model has run.");
    const body = h(
      "div",
      { class: "heads-body", hidden: true },
      h("div", { class: "heads-left" }, thumbnailSection, h("div", { class: "panel" }, editor.element)),
      h("div", { class: "heads-right" }, notes, linesSection, patchClasses.element, matrixSection),
      table.element,
    );
    element.append(
      explanation(
        "heads",
        "What each token attends to",
        "[[Attention]] lets a [[token]] take in information from other tokens. For every token (the [[query]]) it computes an [[attention weight]] for each token it can attend to (the [[keys|key]]); the weights add up to 1.",
        "Each [[layer]] has several [[heads|head]] that do this in parallel, and every head has learned its own pattern. Select a token on the left side of the lines to see its weights.",
      ),
      controls.element,
      placeholder,
      body,
    );

    /** @type {Selection | null} */
    let selection = null;
    /** What was measured of this model's heads. @type {HeadRoles | null} */
    let roles = null;
    let requested = "";
    let startTime = 0;

    /** @param {Pin | null} pinned */
    function pin(pinned) {
      if (selection === null) return;
      if (pinned === null) return store.set({ token: -1 });
      const groups = pinned.role === "query" ? selection.rows : selection.columns;
      store.set({ token: groups[pinned.group]?.tokens[0] ?? -1, token_role: pinned.role });
    }

    /** @param {State} state @returns {Pin | null} */
    function pinOf(state) {
      const trace = context.trace();
      if (trace?.grid !== undefined && selection !== null) {
        const query = imageQuery(state, trace);
        const group = selection.rows.findIndex((each) => each.tokens.includes(query));
        if (state.token < 0 || state.token_role === "query") return group < 0 ? null : { role: "query", group };
      }
      if (selection === null || state.token < 0) return null;
      const groups = state.token_role === "query" ? selection.rows : selection.columns;
      const group = groups.findIndex((each) => each.tokens.includes(state.token));
      return group < 0 ? null : { role: state.token_role, group };
    }

    /** @param {number} row @param {number} column */
    function describeCell(row, column) {
      if (selection === null) return "";
      const isMasked = causalMask(store.get().attention_type, selection.rows, selection.columns)?.(row, column);
      const [query, key] = [selection.rows[row].label, selection.columns[column].label];
      const isEncoder = store.get().attention_type === "encoder";
      if (isMasked) return `“${query}” cannot attend to “${key}”: it is masked, because it comes later.`;
      const { values, columns } = selection.main.matrix;
      const weight = formatWeight(values[row * columns + column]);
      if (selection.main.head === "rollout") return `After layer ${selection.main.layer + 1}, “${query}” is ${weight} “${key}”.`;
      return isEncoder ? `“${query}” attends to “${key}”: ${weight}` : `The step “${query}” attends to “${key}”: ${weight}`;
    }

    /** @param {Pin | null} pointed the token under the mouse, which takes precedence over the pinned one */
    function showSums(pointed = null) {
      if (selection === null) return;
      const pinned = pointed ?? pinOf(store.get());
      const { overlaid } = selection;
      if (pinned === null && context.trace()?.grid !== undefined) return setChildren(sums);
      if (pinned === null) {
        const keys = overlaid.map(({ layer, head }, place) => headKey(headName(layer, head), place));
        return setChildren(
          sums,
          h("p", { class: "note" }, "The largest weights. Select a name on either side to see only its own."),
          h("p", { class: "head-keys" }, keys),
        );
      }
      if (pinned.role === "query" && selection.pooled > 1) return void showUnpooledSums(pointed === null);
      if (pinned.role === "query") {
        const query = selection.rows[pinned.group].label;
        return setChildren(
          sums,
          weightedSums(selection, pinned.group).map((sum, place) => weightedSumLine(query, sum, place)),
        );
      }
      const key = selection.columns[pinned.group].label;
      const row = store.get().attention_type === "encoder" ? "token" : "step";
      return setChildren(
        sums,
        h("p", { class: "note" }, `The ${row}s that attend to “${key}”. Select a ${row} on the left to see its row as a sum.`),
      );
    }

    /**
     * A pooled row stands for several tokens; the weighted sum is computed from the unpooled row of the first one.
     * @param {boolean} isPinned
     */
    async function showUnpooledSums(isPinned) {
      const trace = context.trace();
      if (selection === null || trace === null) return;
      const { attention_type: type, token } = store.get();
      if (!isPinned)
        return setChildren(
          sums,
          h("p", { class: "note" }, `This row stands for ${selection.pooled} ${type === "encoder" ? "tokens" : "steps"}. Select it to see the row of the first.`),
        );
      const current = selection;
      const rows = await Promise.all(
        current.overlaid.map(({ layer, head }) => source.row(trace.id, type, layer, head, token)),
      ).catch(() => null);
      if (rows === null || selection !== current || store.get().token !== token) return;
      const options = { attention_type: type, merge_subwords: false, show_special: true };
      const { rows: queries, columns } = groupRowsAndColumns(trace, options, 1);
      const overlaid = current.overlaid.map((each, index) => ({ ...each, matrix: rows[index] }));
      const unpooled = weightedSums({ ...current, columns, overlaid }, 0);
      setChildren(
        sums,
        unpooled.map((sum, place) => weightedSumLine(queries[token]?.label ?? "", sum, place)),
      );
    }

    /** @param {State} state @param {Trace} trace */
    function draw(state, trace) {
      if (selection === null) return;
      const { main, rows, columns } = selection;
      const pinned = pinOf(state);
      matrixTitle.textContent = `${capitalize(headName(main.layer, main.head))} as a matrix`;
      const limit = main.head === "rollout" ? weightLimit(main.matrix.values) : thumbnails.maxWeight();
      setChildren(legend, weightLegend(limit, state.attention_type === "decoder"));
      setChildren(
        notes,
        attentionNotes(state, trace, selection).map((text) => h("p", { class: "note" }, linkTerms(text))),
      );
      const isImage = trace.grid !== undefined;
      lines.element.hidden = isImage;
      linesTitle.textContent = isImage ? "Attention on the image" : "Attention between tokens";
      patches.update(trace, state);
      patchClasses.update(trace, state);
      if (!isImage) lines.show(selection, state.threshold, pinned);
      showSums();
      const axes = AXES[state.attention_type];
      matrix.show(
        {
          matrix: main.matrix,
          rows,
          columns,
          scale: "weight",
          limit,
          isMasked: causalMask(state.attention_type, rows, columns),
          pinnedRow: pinned?.role === "query" ? pinned.group : -1,
          pinnedColumn: pinned?.role === "key" ? pinned.group : -1,
        },
        `${axes.rows}; ${axes.columns}.`,
      );
    }

    /** Whether the attention on an image, or the classes of its patches, are still to come. */
    const isLoadingImage = () => context.trace()?.grid !== undefined && (patches.read() === null || patchClasses.loading);

    /** The tags, order and table of the heads. @param {State} state @param {Trace | null} trace */
    function showRoles(state, trace) {
      if (trace === null || !trace.model.attention.some((spec) => spec.attention_type === state.attention_type)) return;
      const measured = new MeasuredHeads(roles, state.attention_type);
      rolesControl.showChoices(measured, state);
      thumbnails.update(state, trace, roles === null ? null : measured);
      table.show(roles, measured, thumbnails.order(), state.sort_heads);
    }

    return {
      update(state, trace) {
        controls.update(state, trace);
        body.hidden = trace === null;
        placeholder.hidden = trace !== null;
        if (trace === null) return;
        if (!trace.model.attention.some((spec) => spec.attention_type === state.attention_type)) return;
        const model = context.model();
        const isMeasurable = source.live && model?.input === "text" && model.name === trace.model.name;
        rolesControl.show(isMeasurable ? model : null, state);
        showRoles(state, trace);
        editor.update(trace);
        const key = JSON.stringify([
          trace.id,
          state.attention_type,
          state.layer,
          selectedHead(state, trace.model).head,
          state.heads,
          state.merge_subwords,
          state.show_special,
        ]);
        if (key === requested && selection !== null) return draw(state, trace);
        if (key === requested) return;
        requested = key;
        startTime = performance.now();
        delete body.dataset.painted;
        select(source, trace, state).then(
          (loaded) => {
            if (key !== requested) return;
            selection = loaded;
            const maxWeight = thumbnails.maxWeight();
            draw(store.get(), trace);
            void thumbnails.finished().then(() => {
              if (key !== requested) return;
              if (thumbnails.maxWeight() !== maxWeight) draw(store.get(), trace);
              body.dataset.painted = (performance.now() - startTime).toFixed(0); // milliseconds, thumbnails included
            });
          },
          (error) => {
            if (key !== requested) return;
            requested = "";
            context.notify(error.message, "error");
          },
        );
      },
      destroy() {
        rolesControl.destroy();
        lines.destroy();
        matrix.destroy();
      },
      exports: {
        svg: () => domToSvg(linesSection, patchClasses.element, matrixSection),
        csv: () => ({ name: "regard-attention", rows: attentionTable(selection, store.get().attention_type) }),
      },
      read: () =>
        selection === null || body.dataset.painted === undefined || isLoadingImage()
          ? null
          : {
              attention_type: store.get().attention_type,
              layer: selection.main.layer,
              head: selection.main.head,
              pooled: selection.pooled,
              matrix: matrix.read(),
              overlaid: selection.overlaid.map(({ layer, head }) => ({ layer, head })),
              lines: lines.read(),
              image: patches.read(),
              patch_classes: patchClasses.read(),
              roles,
              order: thumbnails.order(),
              sums: [...sums.querySelectorAll("[data-sum]")].map((line) => line.textContent),
              milliseconds: Number(body.dataset.painted),
            },
    };
  },
};
