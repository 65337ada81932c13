"use strict";
(() => {
  const parts = ["header.top", "nav.contents", "main", "footer"];
  const every = 2000;
  const lost = document.querySelector(".lost");
  document.body.prepend(lost);

  const keyOf = (details) => details.querySelector("summary")?.textContent;
  const all = (selector) => [...document.querySelectorAll(selector)];

  function show(next) {
    const open = new Map(all("details").map((one) => [keyOf(one), one.open]));
    const scrolled = all(".scroll, nav.contents .page").map((one) => one.scrollLeft);
    for (const part of parts) {
      document.querySelector(part).replaceWith(next.querySelector(part));
    }
    for (const one of all("details")) {
      one.open = open.get(keyOf(one)) ?? one.open;
    }
    all(".scroll, nav.contents .page").forEach((one, place) => {
      one.scrollLeft = scrolled[place] ?? 0;
    });
    document.title = next.title;
    document.body.dataset.over = next.body.dataset.over ?? "yes";
  }

  async function refresh() {
    // What somebody marks to copy stays as it is; nobody sees a hidden page.
    if (document.hidden || getSelection().type === "Range") return;
    const reply = await fetch("/", { cache: "no-store", redirect: "error" });
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    const next = new DOMParser().parseFromString(await reply.text(), "text/html");
    show(next);
  }

  async function follow() {
    while (document.body.dataset.over === "no") {
      await new Promise((resume) => setTimeout(resume, every));
      try {
        await refresh();
        lost.hidden = true;
      } catch {
        lost.hidden = false;
      }
    }
  }

  follow();
})();
