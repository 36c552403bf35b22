"use strict";
// Counts what went wrong, so that a test (or a reader) can see it on the document element.
(() => {
  const root = document.documentElement;
  root.dataset.scriptErrors = "0";
  root.dataset.blocked = "0";
  const more = (name) => { root.dataset[name] = String(Number(root.dataset[name]) + 1); };
  window.addEventListener("error", () => more("scriptErrors"));
  window.addEventListener("unhandledrejection", () => more("scriptErrors"));
  document.addEventListener("securitypolicyviolation", (event) => {
    root.dataset.blockedLast = `${event.effectiveDirective} ${event.blockedURI}`;
    more("blocked");
  });
})();
