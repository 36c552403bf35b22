/*
 * Ranks guides above the API reference, and both above decisions and result pages. Of equal matches,
 * guides come before the catalogue, the architecture and the research pages. Links to a section keep
 * their score, so that the name of an attack leads to its entry in the catalogue.
 */
"use strict";

var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    if (/^(decisions|results)\//.test(page)) return score - 200;
    if (page === "api") return score - 100;
    const isReference = /^(architecture|catalogue|claims|findings|ladder|papers|results)/.test(page);
    return isReference && !anchor ? score - 1 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
