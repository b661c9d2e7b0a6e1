"use strict";
(() => {
  const form = document.getElementById("filters");
  const text = document.getElementById("text");
  const area = document.getElementById("area");
  const items = [...document.querySelectorAll("[data-area]")].map((element) => ({
    element,
    area: element.dataset.area,
    states: element.dataset.status.split(" "),
    words: element.textContent.toLowerCase(),
  }));
  const show = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const states = new Set([...form.querySelectorAll("[name=status]:checked")].map((box) => box.value));
    let laws = 0;
    for (const item of items) {
      const shown =
        (!area.value || item.area === area.value) &&
        item.states.some((state) => states.has(state)) &&
        words.every((word) => item.words.includes(word));
      item.element.hidden = !shown;
      laws += shown && item.element.matches(".laws tr");
    }
    let heading = null;
    for (const row of document.querySelectorAll("tbody tr.area, tbody tr[data-area]")) {
      if (row.matches(".area")) {
        heading = row;
        heading.hidden = true;
      } else if (heading && !row.hidden) {
        heading.hidden = false;
      }
    }
    document.getElementById("count").textContent = laws === 1 ? "1 law" : `${laws} laws`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
  for (const button of document.querySelectorAll("button.copy")) {
    const code = button.parentElement.querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
    });
  }
})();
