// Sends the form as it is typed and shows the answer. Without it, the form is an ordinary one.
"use strict";
(() => {
  document.documentElement.classList.add("js");
  const form = document.getElementById("form");
  const pick = document.getElementById("pick");
  if (pick) {
    pick.addEventListener("change", async () => {
      if (pick.files.length) document.getElementById("text").value = await pick.files[0].text();
    });
  }
  if (!form) return;
  const status = document.getElementById("status");
  const answers = document.getElementById("answers");
  const stale = document.getElementById("stale");
  const banner = document.getElementById("banner");
  const follow = document.getElementById("follow");
  let waiting = null;
  let pending = null;
  let running = false;
  let next = null;
  let then = null;

  const number = (text) => {
    const plain = text.trim();
    const part = plain.match(/^([0-9.eE+-]+)\s*\/\s*([0-9.eE+-]+)$/);
    if (part) return Number(part[1]) / Number(part[2]);
    return plain.endsWith("%") ? Number(plain.slice(0, -1)) / 100 : Number(plain);
  };
  const typed = (kind, value) => {
    if (kind === "log") return String(Number((10 ** value).toPrecision(3)));
    return String(kind === "whole-log" ? Math.round(10 ** value) : value);
  };
  const place = (slider) => {
    const value = number(document.getElementById(slider.dataset.for).value || "0");
    if (Number.isNaN(value)) return;
    slider.value = slider.dataset.kind.endsWith("log") ? Math.log10(Math.max(value, 1e-9)) : value;
    slider.setAttribute("aria-valuetext", document.getElementById(slider.dataset.for).value || "0");
  };
  const placeAll = () => form.querySelectorAll(".slider").forEach(place);

  const showError = (name, message) => {
    const box = document.getElementById(name + "-error");
    if (box) {
      box.textContent = message || "";
      box.hidden = !message;
    }
    const field = document.getElementById(name);
    if (field && field.matches("input, select, textarea")) message ? field.setAttribute("aria-invalid", "true") : field.removeAttribute("aria-invalid");
  };

  const show = (answer, ok) => {
    form.querySelectorAll("[aria-invalid]").forEach((field) => showError(field.id, ""));
    for (const [name, message] of Object.entries(answer.errors || {})) showError(name, message);
    for (const [group, sum] of Object.entries(answer.sums || {})) {
      const box = document.getElementById(group + "-sum");
      if (!box) continue;
      box.classList.toggle("off", sum.off);
      document.getElementById(group + "-sum-text").textContent = sum.text;
    }
    for (const [name, value] of next ? [] : Object.entries(answer.fields || {})) {
      const field = document.getElementById(name);
      if (field && field !== document.activeElement) field.value = value;
    }
    if (!next) placeAll();
    if (answer.status) status.textContent = answer.status;
    const first = answers.querySelector(".problems") !== null; // nothing could be answered yet
    stale.hidden = ok || first;
    if (ok || first) {
      const open = [...answers.querySelectorAll("details")].map((d) => d.open);
      answers.innerHTML = answer.answers;
      answers.querySelectorAll("details").forEach((d, i) => { d.open = Boolean(open[i]); });
    }
    if (answer.packed) {
      const link = new URL(form.getAttribute("action"), location.href);
      link.searchParams.set("s", answer.packed);
      history.replaceState(null, "", link);
      document.getElementById("link").value = link.href;
      const file = document.getElementById("file");
      const kept = new URL(file.href);
      kept.searchParams.set("s", answer.packed);
      file.href = kept.href;
    }
  };

  const isButton = (extra) => "action" in extra && !extra.action.startsWith("move:");
  const send = async (extra) => {
    // One request at a time; of those that come meanwhile, the last one is sent when it is answered. A button
    // comes last of all: it acts on the plan that a slider makes.
    if (running) {
      if (isButton(extra)) then = extra;
      else next = { ...next, ...extra };
      return;
    }
    running = true;
    const body = new URLSearchParams(new FormData(form));
    for (const [name, value] of Object.entries(extra)) body.set(name, value);
    form.classList.add("busy");
    try {
      const response = await fetch(form.dataset.answers, { method: "POST", body });
      const text = await response.text();
      if (response.headers.get("content-type") === "application/json") {
        show(JSON.parse(text), response.ok);
        if (banner) banner.hidden = true;
      } else {
        status.textContent = text;
      }
    } catch {
      status.textContent = "No answer. If opendas explore has stopped, start it again and open the link to this state in it.";
    }
    running = false;
    form.classList.remove("busy");
    const waited = next || then;
    if (next) next = null;
    else then = null;
    if (waited) send(waited);
  };
  const flush = () => {
    clearTimeout(waiting);
    const extra = pending;
    pending = null;
    if (extra) send(extra);
  };
  const later = (extra, delay) => {
    clearTimeout(waiting);
    pending = extra;
    waiting = setTimeout(flush, delay);
  };

  form.addEventListener("input", (event) => {
    const field = event.target;
    if (field.classList.contains("slider")) {
      const value = Number(field.value);
      const text = document.getElementById(field.dataset.for);
      text.value = typed(field.dataset.kind, value);
      field.setAttribute("aria-valuetext", text.value);
      const move = field.dataset.kind === "share" && follow && follow.checked;
      later(move ? { action: "move:" + field.dataset.for } : {}, 20);
    } else if (field.id !== "follow") {
      later({}, 200);
    }
  });
  form.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (button && "plain" in button.dataset) return;
    event.preventDefault();
    flush();
    send(button && button.name ? { [button.name]: button.value } : {});
  });
  placeAll();
})();
