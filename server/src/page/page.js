"use strict";

// A chat over the server's own interface. Text of the model goes into the page as text, never as markup.

const $ = (id) => document.getElementById(id);
const history = [];
let running = null;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(text, bad) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", Boolean(bad));
}

function headers() {
  const all = { "Content-Type": "application/json" };
  const key = $("key").value.trim();
  if (key) all.Authorization = `Bearer ${key}`;
  return all;
}

// The events of a response, as they come.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const event = rest.slice(0, end);
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

function number(value, digits) {
  return typeof value === "number" ? value.toFixed(digits) : "–";
}

// An answer on the page.
class Answer {
  constructor() {
    this.article = element("article", "assistant");
    this.thoughts = element("details");
    this.thoughts.open = true;
    this.thoughts.append(element("summary", "", "Thinking"));
    this.thought = element("p", "thought");
    this.thoughts.append(this.thought);
    this.thoughts.hidden = true;
    this.said = element("p", "said");
    this.figures = element("p", "figures");
    this.article.append(this.thoughts, this.said, this.figures);
    this.text = "";
    this.pieces = 0;
    this.round = 0;
    this.begin = 0;
  }

  take(chunk) {
    const delta = chunk.choices?.[0]?.delta ?? {};
    const thinks = delta.reasoning_content !== undefined;
    const text = thinks ? delta.reasoning_content : delta.content;
    if (text) {
      const to = thinks ? this.thought : this.said;
      this.thoughts.hidden = !this.thought.firstChild && !thinks;
      for (const piece of chunk.x_drafter?.pieces ?? [{ text, from: "target" }]) {
        to.append(element("span", `piece ${piece.from}`, piece.text));
        this.pieces += 1;
      }
      if (!thinks) this.text += text;
      this.round = chunk.x_drafter?.round ?? this.round;
      this.begin ||= performance.now();
      this.live();
    }
    if (chunk.timings) this.end(chunk);
  }

  live() {
    const seconds = (performance.now() - this.begin) / 1e3;
    const perRound = this.round > 0 ? (this.pieces - 1) / this.round : undefined;
    const rate = seconds > 0 ? (this.pieces - 1) / seconds : undefined;
    this.show(perRound, rate, "");
  }

  end(chunk) {
    const timings = chunk.timings;
    const drafts = timings.draft_n === undefined ? "" :
      `, ${timings.draft_n_accepted} of ${timings.draft_n} drafts accepted`;
    const state = chunk.spec.state === "active" ? "on" : `${chunk.spec.state} (${chunk.spec.reason})`;
    this.show(timings.accept_len ?? undefined, timings.predicted_per_second ?? undefined,
      `${drafts}; ${timings.predicted_n} tokens, speculation ${state}`);
  }

  show(perRound, rate, more) {
    this.figures.textContent =
      `${number(perRound, 2)} tokens per round, ${number(rate, 1)} tok/s${more}`;
  }
}

function atEnd(log) {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

async function ask(text) {
  const log = $("log");
  history.push({ role: "user", content: text });
  const answer = new Answer();
  log.append(element("article", "user", text), answer.article);
  log.scrollTop = log.scrollHeight;
  running = new AbortController();
  $("send").textContent = "Stop";
  say("waiting …");
  const trace = { trace: true };
  if (!$("speculation").checked) trace.draft_max = 0;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: running.signal,
      body: JSON.stringify({
        messages: history,
        stream: true,
        x_drafter: trace,
        chat_template_kwargs: { enable_thinking: $("thinking").checked },
      }),
    });
    if (!response.ok) {
      if (response.status === 401) $("key-label").hidden = false;
      const body = await response.json().catch(() => null);
      throw new Error(body?.error?.message ?? `status ${response.status}`);
    }
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const follow = atEnd(log);
      answer.take(chunk);
      if (follow) log.scrollTop = log.scrollHeight;
      if (answer.pieces > 0) say("answering …");
    }
    say("done");
  } catch (error) {
    if (error.name === "AbortError") say("stopped");
    else say(error.message, true);
  }
  if (answer.text) history.push({ role: "assistant", content: answer.text });
  else if (answer.pieces === 0) {
    // Nothing came: the question can be asked again.
    history.pop();
    answer.article.previousSibling.remove();
    answer.article.remove();
    $("text").value ||= text;
  } else history.push({ role: "assistant", content: "" });
  running = null;
  $("send").textContent = "Send";
}

async function connect() {
  try {
    const health = await (await fetch("health")).json();
    const spec = health.spec;
    $("model").textContent = `${health.model}, context ${health.context_length}`;
    if (spec.state !== "active") {
      $("speculation").checked = false;
      $("speculation").disabled = true;
      $("model").textContent += `, speculation ${spec.state} (${spec.reason})`;
    }
  } catch {
    $("model").textContent = "the server does not answer";
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running) $("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
$("clear").addEventListener("click", () => {
  running?.abort();
  history.length = 0;
  document.querySelectorAll("article").forEach((article) => article.remove());
  say("");
  $("text").focus();
});
connect();
