"use strict";
(() => {
  const form = document.getElementById("filter");
  const rows = [...document.querySelectorAll("tbody tr[data-state]")];
  const runs = [...document.querySelectorAll("article.run")];
  const texts = new WeakMap();
  const textOf = (element) => {
    let text = texts.get(element);
    if (text === undefined) {
      text = element.textContent.toLowerCase();
      texts.set(element, text);
    }
    return text;
  };

  const MANY = 1000; // runs; with more of them a filter waits until nothing was typed for a while

  let waiting = 0;
  const later = () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 250);
  };
  const filter = () => {
    const state = form.elements.state.value;
    const room = form.elements.room.value;
    const text = form.elements.text.value.trim().toLowerCase();
    const fits = (element) => {
      const own = element.dataset.state;
      const failed = own === "failed" || own === "error";
      if (own && state && (state === "failed" ? !failed : own !== state)) return false;
      return !room || element.dataset.rooms.split(" ").includes(room);
    };
    const told = new Set(); // rows, one of whose runs holds the text
    let shown = 0;
    for (const run of runs) {
      const holds = !text || textOf(run).includes(text);
      if (holds) told.add(run.dataset.row);
      run.hidden = !(holds && fits(run));
    }
    for (const row of rows) {
      row.hidden = !(fits(row) && (!text || told.has(row.id) || textOf(row).includes(text)));
      if (!row.hidden) shown += 1;
    }
    const all = `${rows.length} transcript${rows.length === 1 ? "" : "s"}`;
    form.querySelector("output").value = shown === rows.length ? all : `${shown} of ${all}`;
  };

  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    const within = target.closest("article.run");
    if (form && (target.hidden || (within && within.hidden))) {
      form.reset();
      filter();
    }
    const inner = target.matches("article.run") ? target.querySelector("details") : target;
    for (let at = inner; at; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    target.scrollIntoView();
  };

  if (form) {
    form.hidden = false;
    form.addEventListener("input", runs.length > MANY ? later : filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }
  addEventListener("hashchange", reveal);
  reveal();
})();
