// What the page does beyond links and forms: it takes the key out of its own address, sends a
// question with Enter, shows times as they are here, copies answers, and brings the steps of a run
// at work.

const main = () => document.querySelector("main");
const say = (text) => (document.getElementById("said").textContent = text);

/** The link that `mlx-tools serve page` prints has the key behind a #, which stays in the browser. */
function takeKey() {
  const form = document.getElementById("key");
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key === null) return;
  history.replaceState(null, "", location.pathname);
  if (form === null) return;
  form.elements.key.value = key;
  form.requestSubmit();
}

function sendWithEnter(event) {
  const field = event.target;
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  if (!field.matches(".ask textarea")) return;
  event.preventDefault();
  field.form.requestSubmit();
}

function showTimes() {
  const form = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  for (const time of main().querySelectorAll("time")) {
    time.textContent = form.format(new Date(time.dateTime));
  }
}

/** Adds the steps of a run as they happen; what is inserted was made and escaped by the server. */
function follow() {
  const steps = main().querySelector("[data-live]");
  if (steps === null) return;
  const forming = document.getElementById("forming");
  const [label, text] = [forming.querySelector(".who"), forming.querySelector("pre")];
  const source = new EventSource(steps.dataset.live);
  const keepingAtEnd = (change) => {
    const below = document.documentElement.scrollHeight - innerHeight - scrollY;
    change();
    if (below < 80) scrollTo(0, document.documentElement.scrollHeight);
  };
  source.addEventListener("piece", ({ data }) =>
    keepingAtEnd(() => {
      const piece = JSON.parse(data);
      const begins = forming.hidden || label.textContent !== piece.label || piece.whole;
      if (begins) text.textContent = "";
      label.textContent = piece.label;
      text.append(piece.text);
      forming.hidden = false;
    }),
  );
  source.addEventListener("steps", ({ data }) =>
    keepingAtEnd(() => {
      const { html, said } = JSON.parse(data);
      forming.hidden = true;
      forming.insertAdjacentHTML("beforebegin", html);
      say(said);
    }),
  );
  source.addEventListener("rest", async () => {
    source.close();
    const answer = await fetch(location.pathname);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    main().replaceWith(document.adoptNode(next.querySelector("main")));
    begin();
    say(main().querySelector(".facts .state")?.textContent ?? "");
    main().querySelector(".wait")?.scrollIntoView({ block: "nearest" });
  });
}

/** Shows the buttons that copy, which need the script, and has each copy the text as it was written. */
function offerCopies() {
  if (!navigator.clipboard) return;
  for (const button of main().querySelectorAll("[data-copy]")) {
    const source = button.closest(".answer").querySelector(".source");
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.value);
        button.textContent = "Copied";
        say("The answer is copied");
      } catch {
        button.textContent = "The browser does not allow it";
      }
    });
  }
}

function begin() {
  showTimes();
  offerCopies();
  follow();
}

addEventListener("keydown", sendWithEnter);
addEventListener("hashchange", takeKey);
takeKey();
begin();
