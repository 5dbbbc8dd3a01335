// Conveniences only: every page works without this file.
"use strict";

// Empty fields stay out of the address.
const inputs = document.getElementById("inputs");
if (inputs) {
  inputs.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) {
      if (value === "") event.formData.delete(name);
    }
  });
}

if (navigator.clipboard) {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const word = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = word; }, 2000);
    });
  }
}

// A link from a note opens the fold its field is in.
addEventListener("hashchange", () => {
  const field = document.getElementById(location.hash.slice(1));
  if (!field || !inputs || !inputs.contains(field)) return;
  for (let fold = field.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  field.focus();
});

// On paper every fold is open.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll(".answer details:not([open], .save)")];
  for (const fold of opened) fold.open = true;
});
addEventListener("afterprint", () => {
  for (const fold of opened) fold.open = false;
});
