"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const form = byId("filters");
  const [text, area, level] = [byId("text"), byId("area"), byId("level")];
  const boxes = [...form.querySelectorAll("[name=status]")];
  const words = (element, selector) => [...element.querySelectorAll(selector)].map((e) => e.textContent).join(" ");
  let cause = null;
  const items = [];
  for (const element of document.querySelectorAll(".cause, [data-area]")) {
    if (element.matches(".cause")) {
      cause = element.textContent;
      continue;
    }
    const finding = element.matches(".finding");
    items.push({
      element,
      area: element.dataset.area,
      level: element.dataset.level,
      states: element.dataset.status.split(" "),
      // The program of a finding is left out: it has nearly every word.
      words: (finding
        ? `${cause} ${words(element, "h4, .statement, .broke, .remark, .operation, .answer")}`
        : element.textContent
      ).toLowerCase(),
    });
  }

  // A heading is shown while there is something below it. Headings may stand in headings.
  const headings = (nodes, levels) => {
    const open = levels.map(() => []);
    for (const node of nodes) {
      const depth = levels.findIndex((selector) => node.matches(selector));
      if (depth >= 0) {
        // A lead belongs to the heading before it.
        if (!node.matches(".lead")) open.fill([], depth);
        open[depth] = [...open[depth], node];
        node.hidden = true;
      } else if (!node.hidden) {
        open.flat().forEach((heading) => { heading.hidden = false; });
      }
    }
  };

  const show = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const states = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const counts = { law: [0, 0], finding: [0, 0] };
    for (const item of items) {
      const shown =
        (!area.value || item.area === area.value) &&
        (!level.value || item.level === level.value) &&
        item.states.some((state) => states.has(state)) &&
        wanted.every((word) => item.words.includes(word));
      item.element.hidden = !shown;
      const kind = item.element.matches(".finding") ? "finding" : item.element.matches(".laws tr") ? "law" : null;
      if (kind) {
        counts[kind][0] += shown;
        counts[kind][1] += 1;
      }
    }
    const found = byId("findings");
    if (found) headings(found.children, ["h2, .lead", ".cause"]);
    for (const body of document.querySelectorAll(".laws tbody, .versions tbody")) headings(body.children, ["tr.area"]);
    const parts = Object.entries(counts).filter(([, [, all]]) => all);
    byId("count").textContent = parts
      .map(([kind, [some, all]]) => `${some === all ? all : `${some} of ${all}`} ${kind}${all === 1 ? "" : "s"}`)
      .join(", ");
    for (const link of document.querySelectorAll("[data-choose]")) {
      link.toggleAttribute("aria-current", link.dataset.choose === area.value);
    }
  };

  // The fragment keeps the filters, so that a link does: #q=window&area=pool&level=safety&state=broken,known
  const write = () => {
    const kept = new URLSearchParams();
    if (text.value.trim()) kept.set("q", text.value.trim());
    if (area.value) kept.set("area", area.value);
    if (level.value) kept.set("level", level.value);
    if (boxes.some((box) => !box.checked)) {
      kept.set("state", boxes.filter((box) => box.checked).map((box) => box.value).join(","));
    }
    history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname + location.search);
  };
  const read = () => {
    const hash = location.hash.slice(1);
    if (hash.includes("=")) {
      const kept = new URLSearchParams(hash);
      text.value = kept.get("q") ?? "";
      area.value = kept.get("area") ?? "";
      level.value = kept.get("level") ?? "";
      if (area.selectedIndex < 0) area.value = "";
      if (level.selectedIndex < 0) level.value = "";
      const states = kept.get("state")?.split(",");
      for (const box of boxes) box.checked = !states || states.includes(box.value);
    }
    show();
    const story = /^finding-\d+$/.test(hash) ? byId(hash)?.querySelector(".story") : null;
    if (story) story.open = true;
  };

  form.addEventListener("input", () => { show(); write(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  // The fields are only reset after this event.
  form.addEventListener("reset", () => setTimeout(() => { show(); write(); }));
  addEventListener("hashchange", read);
  for (const link of document.querySelectorAll("[data-choose]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      area.value = area.value === link.dataset.choose ? "" : link.dataset.choose;
      show();
      write();
    });
  }
  form.hidden = false;
  read();

  for (const button of document.querySelectorAll("button.copy")) {
    const code = button.parentElement.querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected: copy it with the keyboard";
      }
    });
  }
})();
