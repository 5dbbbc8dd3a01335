// Draws the charts of a page with Vega when they come near; without this file their images stay.
"use strict";

const scripts = document.currentScript.dataset.files.split(" ");
let library;

function load(file) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: `/static/vendor/${file}`, async: false, onload: resolve, onerror: reject });
    document.head.append(script);
  });
}

function tableOf({ columns, rows }) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const column of columns) {
    const cell = Object.assign(document.createElement("th"), { textContent: column, scope: "col" });
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const text of row) line.insertCell().textContent = text;
  }
  return table;
}

async function draw(figure) {
  const image = figure.querySelector("img");
  const address = new URL(image ? image.src : figure.dataset.chart, location);
  address.pathname = address.pathname.replace(/\.svg$/, ".json");
  address.searchParams.set("theme", "auto");
  address.searchParams.set("px", Math.min(2000, Math.max(240, figure.clientWidth)));
  const form = image ? undefined : new URLSearchParams(new FormData(document.getElementById("again")));
  library ??= Promise.all(scripts.map(load));
  const [answer] = await Promise.all([fetch(address, form && { method: "POST", body: form }), library]);
  if (!answer.ok) return;
  const spec = await answer.json();
  const place = document.createElement("div");
  figure.prepend(place);
  const runtime = vega.parse(vegaLite.compile(spec).spec, null, { ast: true });
  await new vega.View(runtime, { expr: vegaInterpreter.expressionInterpreter, renderer: "svg", container: place, hover: true }).runAsync();
  figure.classList.add("drawn");
  figure.querySelector("figcaption > p").textContent = spec.usermeta.message;
  figure.querySelector("details").append(tableOf(spec.usermeta.table));
}

const near = new IntersectionObserver((entries) => {
  for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
    near.unobserve(target);
    draw(target).catch(() => target.querySelector(":scope > div")?.remove()); // the image stays
  }
}, { rootMargin: "300px" });
for (const figure of document.querySelectorAll("figure[data-chart]")) near.observe(figure);
